# SPDX-License-Identifier: Apache-2.0
"""The short way through a SuperLink, for clients' calls about messages.

Flower leads a request through four layers, each with tasks and streams of its own, and a router
with its dependencies, before a function answers it: that takes longer than the answer. Here a
client's call about a message is answered by the same functions, Flower's check of who asks and its
handler. Whatever goes wrong in them goes the long way again, where Flower says what it is.

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_short.py` fails if it changes.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from agnosticfl.deploy.flower.asgi import Receive, Send, answer, body_of, replayed

FLEET = "/v1/fleet/"
# Calls, and whether their handlers take the store beside the state.
CALLS = {"pull-messages": True, "push-messages": False, "confirm-message-received": True}
MOST = 2**21  # bytes of a request that takes this way

_handlers: Any = importlib.import_module("flwr.superlink.servicer.fleet.fleet_handlers")
_auth: Any = importlib.import_module("flwr.superlink.routers.fleet.node_auth")
_types: Any = importlib.import_module("flwr.supercore.protobuf.translation").PROTOBUF_REQUEST_TYPES
_media: str = importlib.import_module("flwr.supercore.protobuf.constants").PROTOBUF_MEDIA_TYPE


class Short:
    """An ASGI application in front of Flower's layers, which answers some calls without them."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        call = str(scope.get("path", "")).removeprefix(FLEET)
        if f"{FLEET}{call}" != scope.get("path") or call not in CALLS or not _short(scope):
            await self.app(scope, receive, send)
            return
        body = await body_of(receive, MOST)
        if body is None:
            await answer(send, 413)
            return
        try:
            found = await run_in_threadpool(call_flower, call, scope, body)
        except Exception:  # any of Flower's, which knows what to say then
            await self.app(scope, replayed(body, receive), send)
            return
        await answer(send, 200, found)


def _short(scope: Mapping[str, Any]) -> bool:
    """Whether a request is of the usual kind: a POST of protobuf that is not long."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    usual = scope["method"] == "POST" and headers.get(b"content-type") == _media.encode()
    return usual and length.isdigit() and len(length) < 8 and int(length) <= MOST


def call_flower(call: str, scope: Mapping[str, Any], body: bytes) -> bytes:
    """What Flower answers to a client's call; any exception if it refuses."""
    # A state of its own: on the long way, Flower's layers begin with what was there before.
    request = Request({**scope, "state": {}})
    request.state.protobuf_request = asked = _types["POST", f"{FLEET}{call}"].FromString(body)
    _auth.authenticate_node(request)
    state = request.app.state.linkstate_factory.state()
    beside = {"store": state.object_store} if CALLS[call] else {}
    handler = getattr(_handlers, call.replace("-", "_"))
    found: bytes = handler(request=asked, state=state, **beside).SerializeToString()
    return found
