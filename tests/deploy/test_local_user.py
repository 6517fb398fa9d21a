# SPDX-License-Identifier: Apache-2.0
"""Whose a connection within this machine is: real ones, of this process and of another user's."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from agnosticfl.deploy import local_user
from agnosticfl.deploy.local_user import (
    ESTABLISHED,
    End,
    Place,
    ask_kernel,
    find_in_table,
    own,
    owner,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")

NOBODY = 65534
PATIENCE = 30.0  # seconds, on a machine that has other things to do

# Another user's process: it connects, says that it has, and closes what it has when it is told to.
STRANGER = """\
import os, socket, sys
os.setuid(int(sys.argv[1]))
end = socket.socket()
end.connect((sys.argv[2], int(sys.argv[3])))
end.sendall(b"hello")
sys.stdin.read(1)
end.close()
sys.stdin.read()
"""


@contextlib.contextmanager
def listening(host: str) -> Generator[tuple[socket.socket, Place]]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"there is no {host} here")
    with listener:
        yield listener, listener.getsockname()[:2]


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request: pytest.FixtureRequest) -> Generator[tuple[Place, Place]]:
    """A connection of this process with itself."""
    with (
        listening(request.param) as (listener, server),
        socket.create_connection(server) as one,
        listener.accept()[0],
    ):
        yield one.getsockname()[:2], server


@pytest.mark.parametrize("look", [ask_kernel, find_in_table])
def test_a_connection_is_found_with_its_owner(
    ends: tuple[Place, Place], look: Callable[[Place, Place], End | None]
):
    client, server = ends
    assert look(client, server) == look(server, client) == End(ESTABLISHED, os.getuid())
    assert own(client, server)


def test_what_is_not_there_is_nobody_s(ends: tuple[Place, Place]):
    client, server = ends
    other = (client[0], 1)
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        ask_kernel(other, server)
    assert find_in_table(other, server) is None
    assert not own(other, server)
    assert not own(server, other)  # where somebody listens, but is not connected so


def test_among_many_connections_the_one_is_found():
    with contextlib.ExitStack() as stack:
        listener, server = stack.enter_context(listening("127.0.0.1"))
        for _ in range(200):
            one = stack.enter_context(socket.create_connection(server))
            stack.enter_context(listener.accept()[0])
            assert ask_kernel(one.getsockname(), server) == End(ESTABLISHED, os.getuid())


def test_where_the_kernel_does_not_answer_its_table_is_read(
    ends: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
):
    def refused(*_: object) -> End:
        raise PermissionError

    monkeypatch.setattr(local_user, "ask_kernel", refused)
    assert owner(*ends) == os.getuid()


def test_a_line_that_has_just_moved_is_looked_for_again(monkeypatch: pytest.MonkeyPatch):
    line = " 0: 0100007F:0001 0100007F:1F90 01 0:0 00:0 0 1234 0 99\n"
    seen = ["head\n", f"head\n{line}"]
    monkeypatch.setattr(Path, "read_text", lambda _: seen.pop(0))
    assert find_in_table(("127.0.0.1", 1), ("127.0.0.1", 8080)) == End(1, 1234)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_s_connection_is_not_ours_and_neither_is_one_that_it_closed():
    """Of what was closed the kernel says that it is root's, and a request may have come by it."""
    with listening("127.0.0.1") as (listener, server):
        words = [sys.executable, "-c", STRANGER, str(NOBODY), *map(str, server)]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as stranger:
            assert stranger.stdin is not None
            listener.settimeout(PATIENCE)
            connection, client = listener.accept()
            with connection:
                assert owner(client, server) == NOBODY
                assert not own(client, server)
                stranger.stdin.write(b"x")
                stranger.stdin.flush()
                until = time.monotonic() + PATIENCE
                while ask_kernel(client, server).state == ESTABLISHED:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                assert owner(client, server) is None
                assert not own(client, server)
                connection.settimeout(PATIENCE)
                assert connection.recv(10) == b"hello"
            stranger.stdin.close()
