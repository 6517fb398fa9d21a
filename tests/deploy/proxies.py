# SPDX-License-Identifier: Apache-2.0
"""A small HTTP proxy that makes ways to servers (CONNECT), as a hospital's lets its machines out.

    python proxies.py ADDRESS PORT LOG

listens there until its standard input ends, and writes a line for each way that it is asked for.
"""

import contextlib
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Generator, Mapping
from pathlib import Path

PATIENCE = 20.0  # seconds for anything
END = b"\r\n\r\n"


class Proxy:
    """A proxy that listens.

    Args:
      names: where a name leads, if not where the machine says.
      account: USER:PASSWORD that it wants; empty if it takes anybody.
      allowed: the ports that it makes ways to; all if none are named.
    """

    def __init__(
        self,
        listener: socket.socket,
        names: Mapping[str, str] | None = None,
        account: str = "",
        allowed: tuple[int, ...] = (),
    ):
        self.listener, self.names, self.account, self.allowed = listener, names, account, allowed
        self.asked: list[str] = []  # HOST:PORT and the answer, of each

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()
        return f"{host}:{port}"

    def serve(self) -> None:
        """Until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=[connection], daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PATIENCE)
            head = b""
            while END not in head and (part := connection.recv(4096)):
                head += part
            place = head.split()[1].decode()
            status, there = self._way(head, place)
            self.noted(f"{place} {status}")
            connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
            if there is not None:
                with there:
                    _both_ways(connection, there)

    def _way(self, head: bytes, place: str) -> tuple[str, socket.socket | None]:
        known = b"proxy-authorization: basic " + b64encode(self.account.encode()).lower()
        if self.account and known not in head.lower():
            return "407 Proxy Authentication Required", None
        host, _, port = place.rpartition(":")
        if not head.startswith(b"CONNECT ") or (self.allowed and int(port) not in self.allowed):
            return "403 Forbidden", None
        try:
            real = (self.names or {}).get(host, host)
            return "200 OK", socket.create_connection((real, int(port)), PATIENCE)
        except OSError:
            return "502 Bad Gateway", None

    def noted(self, line: str) -> None:
        self.asked.append(line)


def _both_ways(one: socket.socket, other: socket.socket) -> None:
    for end in (one, other):
        end.settimeout(None)
    back = threading.Thread(target=_copy, args=[other, one], daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy(
    names: Mapping[str, str] | None = None, account: str = "", allowed: tuple[int, ...] = ()
) -> Generator[Proxy]:
    """One on loopback, as long as the block lasts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Proxy(listener, names, account, allowed)
        thread = threading.Thread(target=made.serve, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


class Logged(Proxy):
    """One whose lines go to a file."""

    log: Path

    def noted(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{line}\n")


def main() -> None:
    address, port, log = sys.argv[1:]
    with socket.create_server((address, int(port))) as listener:
        made = Logged(listener)
        made.log = Path(log)
        threading.Thread(target=made.serve, daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
