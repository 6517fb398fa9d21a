# SPDX-License-Identifier: Apache-2.0
"""The downloader against a real HTTP server that misbehaves in each way once."""

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agnosticfl.data import fetch as module
from agnosticfl.data.fetch import fetch, names
from agnosticfl.errors import BadInput

TRAIN, TEST = "federated_emnist_train.sqlite", "federated_emnist_test.sqlite"
FILES = {f"/{TRAIN}": bytes(range(256)) * 4000, f"/{TEST}": b"a small file"}
SIZE = len(FILES[f"/{TRAIN}"])

Behaviour = Callable[["Handler", bytes, int], None]


class Handler(BaseHTTPRequestHandler):
    """Serves FILES as the server's `behaviour` wants, and keeps the ranges it was asked for."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.server.ranges.append((self.path[1:], asked and int(asked[1])))
        self.server.behaviour(self, FILES[self.path], int(asked[1]) if asked else 0)

    def answer(self, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the tests look at `ranges`."""


class Server(ThreadingHTTPServer):
    behaviour: Behaviour
    ranges: list[tuple[str, int | None]]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def whole(handler: Handler, data: bytes, start: int) -> None:
    if start >= len(data):
        return handler.answer(416, b"", Content_Range=f"bytes */{len(data)}")
    last = f"bytes {start}-{len(data) - 1}/{len(data)}"
    return handler.answer(206 if start else 200, data[start:], Content_Range=last)


def breaks_half_way(handler: Handler, data: bytes, start: int) -> None:
    """Half of what is left comes, but the header promises all of it."""
    rest = data[start:]
    if len(rest) < 1000:
        return whole(handler, data, start)
    last = f"bytes {start}-{len(data) - 1}/{len(data)}"
    return handler.answer(
        206 if start else 200, rest[: len(rest) // 2], len(rest), Content_Range=last
    )


def ignores_range(handler: Handler, data: bytes, _start: int) -> None:
    handler.answer(200, data)


def always_breaks_at_the_same_byte(handler: Handler, data: bytes, _start: int) -> None:
    handler.answer(200, data[:100], len(data))


def not_found(handler: Handler, _data: bytes, _start: int) -> None:
    handler.answer(404, b"nothing here")


def with_hash(data_of_hash: bytes | None) -> Behaviour:
    def behave(handler: Handler, data: bytes, _start: int) -> None:
        digest = hashlib.md5(data if data_of_hash is None else data_of_hash).digest()
        value = f"crc32c=AAAAAA==,md5={base64.b64encode(digest).decode()}"
        handler.answer(200, data, x_goog_hash=value)

    return behave


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.behaviour, server.ranges = whole, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}


def test_all_files_arrive_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    paths = fetch("emnist", tmp_path / "new", lambda *now: seen.append(now), base=server.base)
    assert paths == [tmp_path / "new" / TRAIN, tmp_path / "new" / TEST]
    assert contents(tmp_path / "new") == FILES
    assert [now[1:] for now in seen if now[0] == TEST] == [(12, 12)]
    done = [now[1] for now in seen if now[0] == TRAIN]
    assert done == sorted(done)
    assert done[-1] == SIZE


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch("emnist", tmp_path, base=server.base)
    fetch("emnist", tmp_path, base=server.base)
    assert server.ranges == [(TRAIN, None), (TEST, None)]


def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.behaviour = breaks_half_way
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES
    starts = [start for name, start in server.ranges if name == TRAIN]
    # Half is there, and its last byte is asked for again; then half of the rest, and so on.
    assert starts[:2] == [None, SIZE // 2 - 1]
    assert len(starts) > 5  # more breaks than idle attempts allowed, since each brought something


def test_a_part_of_an_earlier_call_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{TRAIN}.part").write_bytes(FILES[f"/{TRAIN}"][:1000])
    (tmp_path / f"{TEST}.part").write_bytes(FILES[f"/{TEST}"])  # whole, but not yet renamed
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES
    assert server.ranges == [(TRAIN, 999), (TEST, 11)]


def test_a_part_longer_than_the_file_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{TEST}.part").write_bytes(b"x" * 50)
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES


def test_a_server_that_ignores_range_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{TRAIN}.part").write_bytes(b"x" * 1000)
    server.behaviour = ignores_range
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES


def test_no_progress_ends_in_a_clear_line(server: Server, tmp_path: Path) -> None:
    server.behaviour = always_breaks_at_the_same_byte
    with pytest.raises(BadInput, match=r"broke off 5 times .*100 of 1024000 bytes.* run the") as e:
        fetch("emnist", tmp_path, base=server.base)
    assert "\n" not in str(e.value)
    assert list(contents(tmp_path)) == [f"/{TRAIN}.part"]


def test_a_server_error_is_tried_again(server: Server, tmp_path: Path) -> None:
    def fails_twice(handler: Handler, data: bytes, start: int) -> None:
        busy = len(server.ranges) <= 2
        handler.answer(503, b"") if busy else whole(handler, data, start)

    server.behaviour = fails_twice
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES


def test_a_server_that_sends_short_ranges(server: Server, tmp_path: Path) -> None:
    def at_most_half(handler: Handler, data: bytes, start: int) -> None:
        stop = max(start + 2, len(data) // 2 if start < len(data) // 2 else len(data))
        rest, last = data[start:stop], f"bytes {start}-{stop - 1}/{len(data)}"
        handler.answer(206, rest, Content_Range=last)

    server.behaviour = at_most_half
    (tmp_path / f"{TRAIN}.part").write_bytes(FILES[f"/{TRAIN}"][:1000])
    (tmp_path / TEST).write_bytes(FILES[f"/{TEST}"])
    fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == FILES
    assert server.ranges == [(TRAIN, 999), (TRAIN, SIZE // 2 - 1), (TRAIN, SIZE // 2)]


def test_a_wrong_range_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{TRAIN}.part").write_bytes(b"x" * 1000)
    server.behaviour = lambda handler, data, _: handler.answer(
        206, data, Content_Range=f"bytes 0-{len(data) - 1}/{len(data)}"
    )
    with pytest.raises(BadInput, match=r"sent the range 'bytes 0-.*; bytes 999- were asked for"):
        fetch("emnist", tmp_path, base=server.base)


def test_not_found(server: Server, tmp_path: Path) -> None:
    server.behaviour = not_found
    with pytest.raises(BadInput, match=f"{server.base}/{TRAIN} cannot be had: .* 404 Not Found"):
        fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == {}


def test_wrong_bytes_are_deleted(server: Server, tmp_path: Path) -> None:
    wanted = hashlib.sha256(b"other bytes").hexdigest()
    with pytest.raises(BadInput, match=f"wrong bytes: its SHA256 is [0-9a-f]+, not {wanted}"):
        fetch("emnist", tmp_path, base=server.base, sha256={TRAIN: wanted})
    assert contents(tmp_path) == {}


def test_right_checksums_pass(server: Server, tmp_path: Path) -> None:
    server.behaviour = with_hash(None)
    right = {name[1:]: hashlib.sha256(data).hexdigest().upper() for name, data in FILES.items()}
    fetch("emnist", tmp_path, base=server.base, sha256=right)
    assert contents(tmp_path) == FILES


def test_the_hash_that_the_host_sends_is_checked(server: Server, tmp_path: Path) -> None:
    server.behaviour = with_hash(b"other bytes")
    with pytest.raises(BadInput, match="wrong bytes: its MD5 is"):
        fetch("emnist", tmp_path, base=server.base)
    assert contents(tmp_path) == {}


def test_a_wrong_file_that_is_there_already_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / TRAIN).write_bytes(b"old")
    with pytest.raises(BadInput, match=f"{TRAIN} is there, but its SHA256"):
        fetch("emnist", tmp_path, base=server.base, sha256={TRAIN: "0" * 64})
    assert server.ranges == []


def test_without_a_network_it_says_what_to_do(tmp_path: Path) -> None:
    with Server(("127.0.0.1", 0), Handler) as server:
        base = server.base
    # The server is closed, so nobody listens at its port.
    with pytest.raises(BadInput) as e:
        fetch("emnist", tmp_path, base=base)
    message = str(e.value)
    assert "\n" not in message
    for part in (f"cannot reach {base}/{TRAIN}", f"{base}/{TEST}", f"put them in {tmp_path}"):
        assert part in message


def test_an_unwritable_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInput, match="cannot write"):
        fetch("emnist", tmp_path / "file", base=server.base)


def test_names(tmp_path: Path) -> None:
    assert set(names()) == {"emnist", "stackoverflow"}
    with pytest.raises(BadInput, match=r"unknown data set 'emnits'; did you mean 'emnist'\?"):
        fetch("emnits", tmp_path)
    with pytest.raises(BadInput, match="'ftp://mirror' is no http or https address"):
        fetch("emnist", tmp_path, base="ftp://mirror")
    with pytest.raises(BadInput, match="unknown file of emnist 'train'"):
        fetch("emnist", tmp_path, sha256={"train": "00"})
