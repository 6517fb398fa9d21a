# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that only its own user reaches.

    python -m agnosticfl.deploy.flower.superlink OPTIONS

Flower's `flower-superlink` does what it is told by anybody who reaches its port. The port is one of
loopback, which every user of the machine reaches, and Flower knows neither a password for it nor a
socket in the file system. But the kernel knows whose a local connection is.
"""

import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from agnosticfl.deploy.flower.delivering import install
from agnosticfl.deploy.flower.mail import Mail
from agnosticfl.deploy.seeing.logs import TextLines

TABLE = Path("/proc/net/tcp")
LOOKS = 3  # for a connection in it

Send = Callable[[dict[str, Any]], Awaitable[None]]


class OwnUser:
    """An ASGI application behind which no other user of the machine gets.

    Where there is no such table (that is, not on Linux) it lets everybody through.
    """

    def __init__(self, app: Any, table: Path = TABLE):
        self.app, self.table = app, table
        self.open = not table.exists()  # to everybody
        self.known = WeakSet[Any]()  # connections of this user

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self.open or self.admitted(scope, receive):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def admitted(self, scope: Mapping[str, Any], receive: Any) -> bool:
        """Whether this user has the connection, by the table once: that takes milliseconds.

        Uvicorn's `receive` belongs to an object that knows the flow control of its connection, of
        which there is one for as long as that lasts, and so long it has one owner. Where there is
        none, the table is read for each request.
        """
        connection = getattr(getattr(receive, "__self__", None), "flow", None)
        if connection is not None and connection in self.known:
            return True
        own = self.own(scope)
        if own and connection is not None:
            self.known.add(connection)
        return own

    def own(self, scope: Mapping[str, Any]) -> bool:
        """Whether this user has the other end of the connection.

        The kernel gives a long table in pieces, between which lines may move: one that is not found
        is looked for again.
        """
        for _ in range(LOOKS):
            found = owner(self.table.read_text(), scope["client"], scope["server"])
            if found is not None:
                return found == os.getuid()
        return False


def owner(table: str, client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Whose the socket `client` is that is connected to `server`, by the kernel's table."""
    start = table.find(f": {_place(*client)} {_place(*server)} ")
    if start < 0:
        return None
    return int(table[start : table.find("\n", start)].split()[7])


def _place(host: str, port: int) -> str:
    """An address and a port as the kernel writes them: the bytes of the address backwards."""
    return f"{bytes(map(int, host.split('.')))[::-1].hex().upper()}:{port:04X}"


def main() -> None:
    """Flower's own `flower-superlink`, with `OwnUser` around it, and `delivering`."""
    module: Any = importlib.import_module("flwr.superlink.main")
    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    install(module, Mail())
    theirs = module.create_app
    for handler in logging.getLogger("flwr").handlers:
        handler.setFormatter(TextLines())

    def create_app(*args: Any, **options: Any) -> Any:
        app = theirs(*args, **options)
        app.add_middleware(OwnUser)
        return app

    module.create_app = create_app
    command.flower_superlink()


if __name__ == "__main__":
    main()
