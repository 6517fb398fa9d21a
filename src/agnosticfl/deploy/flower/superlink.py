# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that only its own user reaches.

    python -m agnosticfl.deploy.flower.superlink OPTIONS

Flower's `flower-superlink` does what it is told by anybody who reaches its port. The port is one of
loopback, which every user of the machine reaches, and Flower knows neither a password for it nor a
socket in the file system. But the kernel knows whose a local connection is.
"""

import functools
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakSet

import uvicorn

from agnosticfl.deploy.flower import handing
from agnosticfl.deploy.flower import shelf as shelves
from agnosticfl.deploy.flower.delivering import install
from agnosticfl.deploy.flower.mail import Mail
from agnosticfl.deploy.flower.shelf import Shelf
from agnosticfl.deploy.flower.sparing import taking_turns, with_own_layers
from agnosticfl.deploy.local_user import Place, own
from agnosticfl.deploy.seeing.logs import TextLines

IDLE = 75  # seconds that a connection stays without a request: longer than the gate keeps it

Send = Callable[[dict[str, Any]], Awaitable[None]]


class OwnUser:
    """An ASGI application behind which no other user of the machine gets.

    Args:
      own: whether this user has the first end of a connection to the second.
    """

    def __init__(self, app: Any, own: Callable[[Place, Place], bool] = own):
        self.app, self.own = app, own
        self.known = WeakSet[Any]()  # connections of this user

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self.admitted(scope, receive):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def admitted(self, scope: Mapping[str, Any], receive: Any) -> bool:
        """Whether this user has the connection, for which the kernel is asked once.

        Uvicorn's `receive` belongs to an object that knows the flow control of its connection, of
        which there is one for as long as that lasts, and so long it has one owner. Where there is
        none, the kernel is asked at each request.
        """
        connection = getattr(getattr(receive, "__self__", None), "flow", None)
        if connection is not None and connection in self.known:
            return True
        admitted = self.own(scope["client"], scope["server"])
        if admitted and connection is not None:
            self.known.add(connection)
        return admitted


def main() -> None:
    """Flower's own `flower-superlink`, with `OwnUser` around it, and `delivering`.

    It keeps connections: to make one takes longer than to answer a request.
    """
    module: Any = importlib.import_module("flwr.superlink.main")
    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    shelf = Shelf()
    shelves.install(shelf)
    handing.install(shelf)
    install(module, Mail(), shelf)
    module._get_middleware = with_own_layers(module._get_middleware)
    database: Any = importlib.import_module("flwr.supercore.sql_mixin").SqlMixin
    database.session = taking_turns(database.session)
    theirs = module.create_app
    for handler in logging.getLogger("flwr").handlers:
        handler.setFormatter(TextLines())

    def create_app(*args: Any, **options: Any) -> Any:
        app = theirs(*args, **options)
        app.add_middleware(OwnUser)
        return app

    module.create_app = create_app
    uvicorn.run = functools.partial(uvicorn.run, timeout_keep_alive=IDLE)
    command.flower_superlink()


if __name__ == "__main__":
    main()
