# SPDX-License-Identifier: Apache-2.0
"""A real server and a stranger who has what anybody can have: its address and `ca.pem`."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from agnosticfl.deploy.app import PACKAGE, write_app
from agnosticfl.deploy.flower.control import Operator
from agnosticfl.deploy.flower.superlink import OwnUser
from agnosticfl.deploy.gate.refusals import LINES, MINUTE
from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.supervise.children import Child, Failed, Link
from agnosticfl.deploy.supervise.local import start_node
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
from agnosticfl.runs.records import read_records
from tests.deploy.federations import toy
from tests.deploy.knocking import PROTOBUF, PULL, Knock, flower_routes

NODES = 2
ROUNDS = 60  # of tenths of a second: many are left when the gate is killed
PATIENCE = 600.0  # seconds for a run, on a machine that has other things to do
MEMORY = 96 * 2**20  # bytes that the gate may grow by, whatever is done to it

# What the stranger would run on the server.
EVIL = """\
from pathlib import Path

from flwr.serverapp import ServerApp

Path({marker!r}).write_text("loaded")
app = ServerApp()


@app.main()
def main(grid, context):
    Path({marker!r}).write_text("run")
"""


class Served:
    """The server, with its clients' keys but no client yet."""

    def __init__(self, place: Path):
        self.place, keys = place, place / "keys"
        make_authority(keys, ["127.0.0.1"], days=2)
        self.keys = [keys / "clients" / f"{number}.key" for number in range(NODES)]
        for key in self.keys:
            make_node_key(key)
        write_app(place / "app", toy(ROUNDS, NODES))
        options = {"over-selection": 1.0}
        port = children.free_port()
        self.service = Service(
            place / "app", keys, place / "state", place / "run", "127.0.0.1", port, options
        )
        self.said: list[str] = []
        self.supervisor = Supervisor(self.service, self.said.append)
        shutil.copy(keys / "ca.pem", place / "public.pem")  # what the stranger has
        self.stranger = Link(
            self.supervisor.entrance.address, place / "public.pem", place / "stranger"
        )

    def client(self) -> httpx.Client:
        return client_of(self.stranger)


def client_of(link: Link) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=str(link.authority))
    address = f"https://{link.address}"
    return httpx.Client(base_url=address, verify=trusted, timeout=60.0, trust_env=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    served = Served(tmp_path_factory.mktemp("server"))
    with served.supervisor as supervisor:
        supervisor.ensure_up()
        yield served


@pytest.mark.attack(
    "a stranger calls the coordinator",
    "the gate: ten routes of the fleet, for registered keys",
)
def test_every_route_of_flower_is_closed_to_a_stranger(server: Served):
    """The same answer to all, the fleet's among them, and to a route that does not exist."""
    with server.client() as client:
        for method, path in [*flower_routes(), ("GET", "/"), ("POST", "/v1/nothing")]:
            answer = client.request(method, path, headers=PROTOBUF)
            assert (answer.status_code, answer.content) == (404, b""), path
    log = (server.service.state / "superlink.log").read_text()
    assert "/v1/control/register-node" in log  # the operator's own
    for path in ("start-run", "stop-run", "stream-logs", "/v1/nothing", "pull-messages"):
        assert path not in log


@pytest.mark.attack(
    "a client calls control, or replays a request",
    "the gate: routes by name, a signature is taken once",
)
def test_a_client_s_key_opens_the_fleet_only_and_each_signature_once(server: Served):
    ann = Knock(server.keys[0])
    with server.client() as client:
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/health"):
            assert client.post(path, headers=ann.headers()).status_code == 404
        headers = ann.headers()
        first = client.post(PULL, headers=headers)
        assert first.content  # the SuperLink's own words: an empty request is of no node
        assert b"SuperNode" in first.content
        again = client.post(PULL, headers=headers)
        assert (again.status_code, again.content) == (401, b"")


def test_the_superlink_listens_on_loopback_alone(server: Served):
    assert server.supervisor.superlink is not None
    family = psutil.Process(server.supervisor.superlink.process.pid)
    listening = [
        connection.laddr.ip
        for process in (family, *family.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}


def test_the_server_s_files_are_its_user_s(server: Served):
    state = server.service.state
    assert state.stat().st_mode & 0o777 == 0o700
    for name in ("superlink.db", "superlink.log", "gate.log", "inner/server.key"):
        assert (state / name).stat().st_mode & 0o077 == 0, name


@pytest.mark.attack(
    "another user of the server's machine calls the SuperLink",
    "the kernel says whose a connection is",
)
@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_another_user_of_the_machine_does_not_reach_the_superlink(server: Served):
    url = f"https://{server.supervisor.link.address}/v1/control/list-runs"
    line = ["curl", "-ksS", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", url]
    line += ["-H", "content-type: application/protobuf", "-H", "accept: application/protobuf"]
    answers = [
        subprocess.run(line, user=user, capture_output=True, text=True, check=True, cwd="/").stdout
        for user in (0, 65534)
    ]
    assert answers == ["200", "404"]


class Conversation:
    """What Uvicorn gives an application to hear a request by, of one connection."""

    def __init__(self, flow: object):
        self.flow = flow

    async def receive(self) -> None:
        raise NotImplementedError


def test_the_kernel_is_asked_once_for_each_connection_and_a_refusal_is_not_kept():
    """The next connection may have the same port, and be somebody else's."""

    class Flow:
        pass

    ours = [True]
    scope = {"type": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080)}
    door = OwnUser(None, lambda *_: ours[0])
    one, other = Conversation(Flow()), Conversation(Flow())
    assert door.admitted(scope, one.receive)
    ours[0] = False
    assert door.admitted(scope, Conversation(one.flow).receive)  # its next request
    assert not door.admitted(scope, other.receive)
    assert not door.admitted(scope, lambda: None)
    ours[0] = True
    assert door.admitted(scope, other.receive)
    assert len(door.known) == 2
    del one
    assert len(door.known) == 1  # it is forgotten with its connection


@pytest.mark.attack(
    "a stranger runs an app, registers, lists, stops, reads logs",
    "the gate; the SuperLink listens on loopback",
)
@pytest.mark.slow
def test_a_stranger_s_commands_are_refused_and_nothing_of_his_runs(server: Served):
    marker = server.place / "marker"
    app = server.place / "evil"
    write_app(app, toy(1))
    (app / PACKAGE / "server_app.py").write_text(EVIL.format(marker=str(marker)))
    rogue = make_node_key(server.place / "rogue.key")
    children.configure(server.stranger)
    for words in (
        ("run", str(app)),
        ("supernode", "register", str(rogue)),
        ("supernode", "ls"),
        ("ls",),
        ("stop", "1"),
    ):
        assert flwr(server.stranger, *words).returncode != 0
    assert flwr(server.stranger, "log", "1", after=["--show"]).returncode != 0

    node = children.client_command(server.stranger, rogue.with_suffix(".key"), app, {})
    child = children.start(node, server.place / "rogue", server.place / "rogue.log")
    try:
        until = time.monotonic() + PATIENCE
        while "the server does not know" not in child.log.read_text():
            assert child.alive()
            assert time.monotonic() < until
            time.sleep(0.2)
        assert "as node" not in child.log.read_text()
    finally:
        child.stop()

    with server.supervisor.operator() as operator:
        assert operator.runs() == []
        assert len(operator.nodes()) == NODES
    assert not marker.exists()

    # The same app does run for the operator, so the marker would have told.
    done = flwr(server.supervisor.link, "run", str(app))
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + PATIENCE
    while not marker.exists():
        assert time.monotonic() < until
        time.sleep(0.2)


def flwr(link: Link, *words: str, after: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """One of Flower's commands, as an operator types them."""
    return subprocess.run(
        ["flwr", *words, children.CONNECTION, *after],
        env=children.environment(link.home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_an_operator_registers_a_key_once_and_hears_why_not(server: Served, tmp_path: Path):
    (tmp_path / "no.pub").write_text("nonsense")
    with server.supervisor.operator() as operator:
        assert operator.register(server.keys[0].with_suffix(".pub")) is False
        assert {node.status for node in operator.nodes()} == {"registered"}
        with pytest.raises(Failed, match=r"no\.pub is no public key of a node"):
            operator.register(tmp_path / "no.pub")
        write_app(tmp_path / "app", toy(1))
        with pytest.raises(Failed, match="the SuperLink refuses: "):
            operator.start(tmp_path / "app", {"no-such-option": 1})
    with (
        Operator(server.stranger._replace(address="127.0.0.1:9")) as operator,
        pytest.raises(Failed, match="the SuperLink does not answer"),
    ):
        operator.runs()


def test_an_operator_ends_every_run_that_is_left(server: Served, tmp_path: Path):
    write_app(tmp_path / "app", toy(1))
    with server.supervisor.operator() as operator:
        begun = [
            operator.start(tmp_path / "app", {"out": str(tmp_path / name)}) for name in ("a", "b")
        ]
        operator.stop_all()
        ended = {run.number: run.status for run in operator.runs()}
        assert [ended[run] for run in begun] == ["finished:stopped"] * 2
        operator.stop_all()  # those that have ended stay as they are
        assert {run.number: run.status for run in operator.runs()} == ended


class Attack:
    """Slow connections, and bodies without an end, until it is told to stop."""

    def __init__(self, server: Served):
        self.server, self.stop = server, threading.Event()
        self.refused, self.most = 0, 0
        gate = server.supervisor.gate
        assert gate is not None
        self.gate = psutil.Process(gate.process.pid)
        self.before = self.gate.memory_info().rss
        self.threads = [threading.Thread(target=work) for work in (self.slow, self.long)]

    def slow(self) -> None:
        """Two hundred connections, half of them with TLS, that begin a request and say no more."""
        host, _, port = self.server.stranger.address.rpartition(":")
        trusted = ssl.create_default_context(cafile=str(self.server.stranger.authority))
        while not self.stop.is_set():
            with contextlib.ExitStack() as stack:
                for number in range(200):
                    with contextlib.suppress(OSError):
                        one = stack.enter_context(socket.create_connection((host, int(port)), 10))
                        if number % 2:
                            one = stack.enter_context(
                                trusted.wrap_socket(one, server_hostname=host)
                            )
                        one.sendall(b"POST /v1/fleet/")
                    self.look()
                self.stop.wait(2.0)

    def long(self) -> None:
        """A gigabyte at a time, with a client's signature and without."""
        ann = Knock(self.server.keys[0])
        while not self.stop.wait(1.0):
            for headers in (ann.headers(), PROTOBUF):
                more = {"content-length": str(2**30)}
                with contextlib.suppress(httpx.TransportError), self.server.client() as client:
                    client.post(PULL, headers=headers | more, content=self.pieces())
                self.refused += 1
                self.look()

    def pieces(self) -> Iterator[bytes]:
        for _ in range(2**30 // 2**16):
            yield bytes(2**16)

    def look(self) -> None:
        with contextlib.suppress(psutil.Error):  # it was killed, by the test itself
            self.most = max(self.most, self.gate.memory_info().rss)

    def __enter__(self) -> "Attack":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.attack(
    "slow and oversize requests while a run goes on",
    "limits of the gate",
)
@pytest.mark.slow
def test_a_federation_under_attack_trains_to_its_end(server: Served):
    """In its second round the gate is killed as well, and stands again."""
    nodes: list[Child] = []
    killed: list[int] = []

    def kill(record: Any) -> None:
        gate = server.supervisor.gate
        if record["round"] == 2 and gate is not None:
            killed.append(gate.process.pid)
            os.kill(gate.process.pid, signal.SIGKILL)

    begun = time.monotonic()
    until = begun + PATIENCE
    with children.stopping(nodes), Attack(server) as attack:
        for number, key in enumerate(server.keys):
            config = {"partition-id": number, "num-partitions": NODES}
            nodes.append(start_node(server.supervisor, server.place / key.stem, key, config))
        done = server.supervisor.serve(on_round=kill, should_stop=lambda: time.monotonic() > until)
    assert done, server.said
    assert len(read_records(server.service.out)) == ROUNDS
    assert len(killed) == 1
    assert "the gate died" in server.said
    assert attack.refused > 2
    assert attack.most - attack.before < MEMORY
    said = (server.service.state / "gate.log").read_text().count(" refused 127.0.0.1")
    minutes = (time.monotonic() - begun) / MINUTE
    assert 2 < said <= LINES * (minutes + 6)  # of two gates, and of the tests before
    private = [path.stat().st_mode & 0o077 for path in server.service.out.rglob("*")]
    assert set(private) == {0}
