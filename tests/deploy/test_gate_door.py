# SPDX-License-Identifier: Apache-2.0
"""The gate's connections, over real sockets: those that are slow, many, rude or very long."""

import contextlib
import gc
import hashlib
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.door import Conversation
from agnosticfl.deploy.gate.limits import Limits
from agnosticfl.deploy.gate.serve import configured, server_context
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.process_settings import as_json, from_json
from agnosticfl.deploy.supervise import children
from tests.deploy.knocking import PROTOBUF, PULL, Knock, StubSuperLink

PATIENCE = 60.0  # seconds for anything, on a machine that has other things to do
LIMITS = Limits(connections=40, address_connections=20, head_seconds=2.0, request_seconds=5.0)


class Standing:
    """A gate that is open, before a stub."""

    def __init__(self, place: Path):
        make_authority(place, ["127.0.0.1"], days=2)
        make_node_key(place / "clients" / "ann.key")
        self.ann = Knock(place / "clients" / "ann.key")
        self.trusted = ssl.create_default_context(cafile=str(place / "ca.pem"))
        self.superlink = StubSuperLink()
        port = children.free_port()
        settings = Settings(
            "127.0.0.1", port, str(place), "127.0.0.1:1", "", LIMITS, str(place / "served.json")
        )
        assert from_json(as_json(settings), Settings, "the gate's") == settings
        config = configured(settings, self.superlink.way)
        passage: Any = config.app
        self.desk: Desk = passage.desk
        self.address = ("127.0.0.1", port)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def ask(self, headers: dict[str, str] | None = None, content: Any = b"x") -> httpx.Response:
        with self.client() as client:
            return client.post(PULL, headers=headers or self.ann.headers(), content=content)

    def client(self) -> httpx.Client:
        address = "https://{}:{}".format(*self.address)
        return httpx.Client(
            base_url=address, verify=self.trusted, timeout=PATIENCE, trust_env=False
        )

    @contextlib.contextmanager
    def plain(self) -> Generator[socket.socket]:
        with socket.create_connection(self.address, timeout=PATIENCE) as connection:
            yield connection

    @contextlib.contextmanager
    def tls(self) -> Generator[ssl.SSLSocket]:
        with (
            self.plain() as plain,
            self.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            yield connection


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Generator[Standing]:
    gate = Standing(tmp_path_factory.mktemp("keys"))
    gate.thread.start()
    try:
        wait_for(lambda: gate.server.started)
        yield gate
    finally:
        gate.server.should_exit = True
        gate.thread.join(PATIENCE)
    assert not gate.thread.is_alive()


@pytest.fixture(autouse=True)
def nothing_is_left(gate: Standing) -> Generator[None]:
    yield
    wait_for(lambda: gate.desk.number == 0)
    assert (gate.desk.visits, gate.desk.unproven) == ({}, {})
    assert gate.ask().status_code == 200
    wait_for(lambda: gate.desk.number == 0)


def conversations() -> list[Conversation]:
    return [each for each in gc.get_objects() if type(each) is Conversation]  # no proxy is asked


def head(headers: dict[str, str], length: int, path: str = PULL) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: gate", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def end_of(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    heard = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := connection.recv(4096):
            heard += piece
    return heard


def test_many_requests_on_one_connection(gate: Standing):
    with gate.client() as client:
        for number in range(5):
            body = bytes([number]) * 300_000
            answer = client.post(PULL, headers=gate.ann.headers(), content=body)
            assert (answer.status_code, answer.content) == (200, hashlib.sha256(body).digest())
            assert gate.desk.number == 1


def test_a_request_that_comes_in_one_piece_with_another(gate: Standing):
    """Whatever comes early, with the handshake's last bytes or before an answer, is not lost."""
    last = {"connection": "close"}
    with gate.tls() as connection:
        both = [head(gate.ann.headers(), 1), b"x", head(gate.ann.headers() | last, 1), b"y"]
        connection.sendall(b"".join(both))
        assert end_of(connection).count(b"HTTP/1.1 200") == 2


def test_nothing_is_kept_of_a_client_that_left_in_haste(gate: Standing):
    """Not by a timer, nor by a circle of references: each would hold a TLS buffer of 256 KiB."""
    ours = [id(each) for each in conversations()]
    gc.disable()
    try:
        with gate.plain() as plain:
            connection = gate.trusted.wrap_socket(plain, server_hostname="127.0.0.1")
            connection.sendall(head(gate.ann.headers(), 1) + b"x")
            assert connection.recv(1)  # it does not wait for the rest
            (kept,) = [weakref.ref(each) for each in conversations() if id(each) not in ours]
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()  # a reset, not an end in good order
        wait_for(lambda: kept() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nhost: gate\r\n\r\n"])
def test_a_connection_without_tls_is_ended(gate: Standing, begun: bytes):
    with gate.plain() as connection:
        connection.sendall(begun)
        assert b"HTTP" not in end_of(connection)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST " + PULL.encode(),
        b"POST / HTTP/1.1\r\nx: y\r\n",
        b"POST / HTTP/1.1\r\nhost: gate\r\ncontent-length: 9\r\n\r\n1",
    ],
)
def test_a_request_that_does_not_go_on_is_ended(gate: Standing, begun: bytes):
    with gate.tls() as connection:
        connection.sendall(begun)
        assert b"200" not in end_of(connection)


def test_a_client_s_body_that_does_not_go_on_is_ended(gate: Standing):
    with gate.tls() as connection:
        connection.sendall(head(gate.ann.headers(), 9) + b"1")
        assert end_of(connection).startswith(b"HTTP/1.1 502")


def test_a_byte_now_and_then_does_not_keep_a_connection(gate: Standing):
    """Neither a new one, nor one by which a request has come before."""
    with gate.tls() as connection:
        connection.sendall(head(gate.ann.headers(), 0))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        until = time.monotonic() + PATIENCE
        with pytest.raises(OSError):  # noqa: PT012
            connection.sendall(b"POST ")
            while True:
                connection.sendall(b"/")
                assert time.monotonic() < until
                time.sleep(0.1)


def test_two_hundred_slow_connections_leave_room_for_a_client(gate: Standing):
    """All of them from the client's own address."""
    with contextlib.ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(gate.plain())
            connection.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
            if number % 20 == 0:
                assert gate.ask().status_code == 200
            assert gate.desk.number <= LIMITS.address_connections
        assert gate.ask().status_code == 200


def test_a_client_that_is_connected_stays_when_others_crowd_in(gate: Standing):
    with gate.client() as client, contextlib.ExitStack() as stack:
        assert client.post(PULL, headers=gate.ann.headers(), content=b"x").status_code == 200
        (own,) = gate.desk.visits["127.0.0.1"]
        for _ in range(60):
            stack.enter_context(gate.plain())
        assert gate.ask().status_code == 200
        assert own in gate.desk.visits["127.0.0.1"]
        assert client.post(PULL, headers=gate.ann.headers(), content=b"x").status_code == 200


def stream(length: int, piece: bytes, sent: list[int]) -> Iterator[bytes]:
    for _ in range(length // len(piece)):
        sent[0] += len(piece)
        yield piece


@pytest.mark.parametrize("signed", [True, False])
def test_a_gigabyte_is_refused_by_its_head(gate: Standing, signed: bool):
    """What is read of it is what the network's buffers hold."""
    sent = [0]
    headers = (gate.ann.headers() if signed else PROTOBUF) | {"content-length": str(2**30)}
    before = len(gate.superlink.requests)
    with contextlib.suppress(httpx.TransportError):  # ended before the answer could be read
        answer = gate.ask(headers=headers, content=stream(2**30, bytes(2**16), sent))
        assert answer.status_code == (413 if signed else 404)
    assert sent[0] < 64 * 2**20
    assert len(gate.superlink.requests) == before


def test_a_body_is_not_asked_for_before_its_head_is_checked(gate: Standing):
    for headers, status in ((PROTOBUF, b"404"), (gate.ann.headers(), b"100")):
        with gate.tls() as connection:
            connection.sendall(head({**headers, "expect": "100-continue"}, 5))
            assert connection.recv(4096).split()[1] == status


@pytest.mark.parametrize(
    "rude",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 2**20,
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET /v1/control HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_of_a_client_s_is_ended(gate: Standing, rude: bytes):
    with gate.tls() as connection:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(rude)
        heard = end_of(connection)
    assert not heard or heard.split()[1] in (b"400", b"404")


def test_old_tls_is_not_spoken(tmp_path: Path):
    make_authority(tmp_path, ["127.0.0.1"], days=2)
    assert server_context(tmp_path).minimum_version == ssl.TLSVersion.TLSv1_2
