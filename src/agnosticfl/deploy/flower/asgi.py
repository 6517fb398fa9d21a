# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of an ASGI application that stands in front of Flower's."""

import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]

_media: str = importlib.import_module("flwr.supercore.protobuf.constants").PROTOBUF_MEDIA_TYPE


async def body_of(receive: Receive, most: int) -> bytes | None:
    """A request's body; None if it is too long, or never comes to its end."""
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if message["type"] != "http.request" or size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What `receive` would have given."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Mapping[str, Any]:
        return first.pop() if first else await receive()

    return given


async def answer(send: Send, status: int, content: bytes = b"") -> None:
    """Says something in Flower's protobuf."""
    length = str(len(content)).encode()
    headers = [(b"content-type", _media.encode()), (b"content-length", length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
