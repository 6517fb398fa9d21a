# SPDX-License-Identifier: Apache-2.0
"""The gate as an ASGI application: it checks a request by its head, and hands it on in pieces."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.limits import Buckets, neighbourhood
from agnosticfl.deploy.gate.members import Members
from agnosticfl.deploy.gate.refusals import Refusals, Refused
from agnosticfl.deploy.gate.routes import (
    CHECK,
    METHOD,
    PATHS,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
)
from agnosticfl.deploy.served import served_bytes
from agnosticfl.errors import quoted

Headers = list[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

CLOSE = (b"connection", b"close")


class Gone(Exception):
    """Whoever asked has left."""


class Passage(NamedTuple):
    """What a request passes through, and the SuperLink at its end."""

    desk: Desk
    members: Members
    requests: Buckets  # of addresses
    calls: Buckets  # of clients
    busy: Counter[str]  # requests of each client that are under way
    way: Callable[[str], httpx.AsyncClient]  # that a client's requests take to the SuperLink
    refusals: Refusals
    served: Path  # the file with what the server says of itself

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        address = neighbourhood((scope.get("client") or ["unknown"])[0])
        answer = Answer(send)
        try:
            name = self.admit(scope, address)
            async with asyncio.timeout(self.desk.limits.request_seconds):
                with self.counted(name):
                    if scope["path"] == CHECK:
                        await self.tell(name, answer)
                    else:
                        await self.forward(scope, receive, answer, self.way(name))
        except Refused as refused:
            place = quoted(scope.get("raw_path") or scope["path"])
            self.refusals.note(address, f"{refused.status} {place}: {refused.why}")
            await answer.refuse(refused.status)
        except (httpx.HTTPError, TimeoutError) as error:
            self.refusals.note(address, f"not answered by the SuperLink: {type(error).__name__}")
            await answer.refuse(502)
        except Gone:
            pass

    def admit(self, scope: Mapping[str, Any], address: str) -> str:
        """The client whose request may pass; `Refused` if it may not."""
        limits, now = self.desk.limits, time.monotonic()
        if not self.requests.take(address, now):
            raise Refused(503, "too many requests of one address")
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        exact = path.decode("latin-1") in {*PATHS, CHECK} and not scope.get("query_string")
        if scope["method"] != METHOD or not exact:
            raise Refused(404, "it is not for clients")
        member = self.members.check(scope["headers"])
        visit = scope.get("state", {}).get("visit")
        if visit is not None:
            self.desk.prove(visit)
        if not self.calls.take(member.name, now):
            raise Refused(503, f"too many requests of {member.name}")
        length, most = length_of(scope["headers"]), 0 if scope["path"] == CHECK else limits.message
        if length > most:
            raise Refused(413, f"{member.name} sends {length} bytes; the limit message is {most}")
        return member.name

    @contextlib.contextmanager
    def counted(self, name: str) -> Generator[None]:
        """A client that sends slowly takes the place of its own requests only."""
        if self.busy[name] >= self.desk.limits.node_requests:
            raise Refused(503, f"too many requests of {name} at once")
        self.busy[name] += 1
        try:
            yield
        finally:
            self.busy[name] -= 1

    async def tell(self, name: str, answer: "Answer") -> None:
        """Says to a client who it is, and what is served."""
        content = served_bytes(self.served, name)
        length = str(len(content)).encode()
        kind = (b"content-type", b"application/json")
        await answer.begin(200, [kind, (b"content-length", length)])
        await answer.go_on(content)
        await answer.end()

    async def forward(
        self,
        scope: Mapping[str, Any],
        receive: Receive,
        answer: "Answer",
        superlink: httpx.AsyncClient,
    ) -> None:
        """Hands a request on and its answer back, with no more than a piece of either in memory."""
        headers = chosen(scope["headers"], REQUEST_HEADERS)
        body = Body(receive)
        request = superlink.build_request(
            METHOD, scope["path"], headers=headers, content=body.pieces()
        )
        response = await superlink.send(request, stream=True)
        try:
            back = chosen(response.headers.raw, RESPONSE_HEADERS)
            await answer.begin(response.status_code, back if body.whole else [*back, CLOSE])
            async for piece in response.aiter_raw():
                await answer.go_on(piece)
            await answer.end()
        finally:
            await response.aclose()


class Body:
    """A request's body, as it comes."""

    def __init__(self, receive: Receive):
        self.receive, self.whole = receive, False

    async def pieces(self) -> AsyncGenerator[bytes]:
        while not self.whole:
            message = await self.receive()
            if message["type"] != "http.request":
                raise Gone
            self.whole = not message.get("more_body", False)
            if piece := message.get("body", b""):
                yield piece


class Answer:
    """An answer, of which perhaps a part is under way."""

    def __init__(self, send: Send):
        self.send, self.begun = send, False

    async def begin(self, status: int, headers: Headers) -> None:
        self.begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def go_on(self, piece: bytes) -> None:
        await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, status: int) -> None:
        """An empty answer, after which the connection ends: nobody reads on a body that comes."""
        if not self.begun:  # of half an answer Uvicorn ends the connection
            await self.begin(status, [(b"content-length", b"0"), CLOSE])
            await self.end()


def chosen(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> Headers:
    """Those headers that pass."""
    return [(name.lower(), value) for name, value in headers if name.lower() in names]


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """What a request says of its length, which it has to."""
    names = [name for name, _ in headers]
    values = [value for name, value in headers if name == b"content-length"]
    if b"transfer-encoding" in names or len(values) != 1 or not values[0].isdigit():
        raise Refused(411, "no length")
    return int(values[0].lstrip(b"0")[:20] or b"0")  # 20 digits are too many already
