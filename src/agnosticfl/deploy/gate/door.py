# SPDX-License-Identifier: Apache-2.0
"""Connections: counted before anything is read, then TLS, then HTTP, each with its time.

Uvicorn speaks HTTP, but waits for ever for a request that comes a byte at a time, and counts a
connection after its TLS handshake only. Both are done here.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agnosticfl.deploy.gate.desk import Desk, Visit
from agnosticfl.deploy.gate.limits import neighbourhood
from agnosticfl.deploy.gate.refusals import Refusals

FAREWELL = 5.0  # seconds to end a connection in good order


class Hall(NamedTuple):
    """What all doors of a gate share."""

    desk: Desk
    tls: Callable[[], ssl.SSLContext]  # for a connection that begins
    refusals: Refusals


class Door(asyncio.Protocol):
    """One connection until its TLS handshake is done; Uvicorn makes one for each that comes."""

    def __init__(
        self,
        hall: Hall,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        self.hall, self.config = hall, config
        self.server_state, self.app_state = server_state, app_state
        self.greeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        address = neighbourhood(peer[0]) if peer else "unknown"
        visit = self.hall.desk.enter(address, transport.abort)
        if visit is None:
            self.hall.refusals.note(address, "too many connections")
            transport.abort()
            return
        transport.pause_reading()  # until somebody is there who can read TLS
        loop = asyncio.get_running_loop()
        self.greeting = loop.create_task(self._greet(transport, visit))

    async def _greet(self, transport: asyncio.Transport, visit: Visit) -> None:
        """The TLS handshake."""
        state = {**self.app_state, "visit": visit}
        conversation = Conversation(self.hall, visit, self.config, self.server_state, state)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                conversation,
                self.hall.tls(),
                server_side=True,
                ssl_handshake_timeout=self.hall.desk.limits.head_seconds,
                ssl_shutdown_timeout=FAREWELL,
            )
        except (OSError, RuntimeError):  # no TLS, not in time, or gone: it happens all the time
            secured = None
        if secured is None or secured.is_closing():
            transport.abort()
            self.hall.desk.leave(visit)
            return
        conversation.connection_made(secured)


class Conversation(H11Protocol):
    """HTTP on a connection; the next request must have begun within a given time."""

    def __init__(
        self,
        hall: Hall,
        visit: Visit,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ):
        super().__init__(config, server_state, app_state)
        self.hall, self.visit = hall, visit
        self.early: list[bytes] = []  # what came with the end of the handshake
        self.made = False
        self.late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made = True
        self._expect()
        early, self.early = self.early, []
        if early:
            self.data_received(b"".join(early))

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.hall.desk.leave(self.visit)
        if self.made:
            super().connection_lost(exc)
        # What is kept of a connection holds a TLS buffer of 256 KiB, so nothing may keep it longer:
        # no timer, which Uvicorn leaves to itself after an error, and no circle of references.
        self._unset_keepalive_if_required()
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.made:
            super().data_received(data)
        else:
            self.early.append(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._busy():
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy() and not self.transport.is_closing():
            self._expect()

    def _busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect(self) -> None:
        self._expect_nothing()
        self.late = self.loop.call_later(self.hall.desk.limits.head_seconds, self._give_up)

    def _expect_nothing(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _give_up(self) -> None:
        if not self.visit.proven:  # a client that is done may leave its connection open
            self.hall.refusals.note(self.visit.address, "no request in time")
        self.transport.abort()
