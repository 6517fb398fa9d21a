# SPDX-License-Identifier: Apache-2.0
"""Requests as a SuperNode signs them, a SuperLink that only says what it was asked, and a gate."""

import asyncio
import datetime
import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from fastapi.routing import iter_route_contexts
from flwr.superlink.main import create_app

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.limits import Buckets, Limits
from agnosticfl.deploy.gate.members import Members
from agnosticfl.deploy.gate.passage import Passage
from agnosticfl.deploy.gate.refusals import Refusals

PEM = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
# How many points the curve P-384 has.
ORDER = 2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D
PULL = "/v1/fleet/pull-messages"


class Knock:
    """A node key, and the headers that Flower's SuperNode would send with it."""

    def __init__(self, path: Path):
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key

    def headers(self, later: float = 0.0) -> dict[str, str]:
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=later)
        return self.signed(moment.isoformat())

    def signed(self, timestamp: str) -> dict[str, str]:
        signature = self.key.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
        public = self.key.public_key().public_bytes(*PEM)
        return {
            **PROTOBUF,
            "flwr-public-key": b64encode(public).decode(),
            "flwr-timestamp": timestamp,
            "flwr-signature": b64encode(signature).decode(),
        }


def mirrored(signature: bytes) -> bytes:
    """Another signature under the same words, which needs no key to make: (r, −s)."""
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, ORDER - s)


class StubSuperLink(httpx.AsyncBaseTransport):
    """Answers with a digest of what it was sent, and remembers the requests.

    Args:
      answers: what it answers instead, by path, where "" stands for all others.
    """

    def __init__(self, answers: Mapping[str, bytes] | None = None) -> None:
        self.answers = answers or {}
        self.requests: list[httpx.Request] = []
        self.lengths: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        digest, length = hashlib.sha256(), 0
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            digest.update(piece)
            length += len(piece)
        self.lengths.append(length)
        said = self.answers.get(request.url.path, self.answers.get("", digest.digest()))

        async def answer() -> AsyncIterator[bytes]:
            for byte in said:
                yield bytes([byte])

        headers = {"content-type": "application/protobuf", "content-length": str(len(said))}
        secret = {"server": "uvicorn", "set-cookie": "a=b", "location": "https://example.org"}
        return httpx.Response(200, headers=headers | secret, content=answer())

    def way(self, _client: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, base_url="https://127.0.0.1:1")


def flower_routes() -> list[tuple[str, str]]:
    """Every route that the SuperLink of the installed Flower has."""
    found: list[tuple[str, str]] = []
    for context in iter_route_contexts(create_app().routes):
        route: Any = context.route
        found += [(method, route.path) for method in sorted(route.methods)]
    return found


USUAL = Limits()


class Gate:
    """The application, the stub behind it, and what was refused."""

    def __init__(self, folder: Path, limits: Limits = USUAL):
        self.superlink = StubSuperLink()
        self.said: list[str] = []
        self.members = Members(folder)
        self.members.opened -= 600.0  # some time ago
        self.app: Any = Passage(
            Desk(limits),
            self.members,
            Buckets(limits.address_rate),
            Buckets(limits.node_rate),
            Counter(),
            self.superlink.way,
            Refusals(self.said.append),
            folder / "served.json",
        )

    def ask(
        self, path: str = PULL, headers: Any = None, method: str = "POST", body: Any = b"x"
    ) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.1", 123))
            async with httpx.AsyncClient(transport=transport, base_url="https://gate") as client:
                return await client.request(method, path, headers=headers, content=body)

        return asyncio.run(call())
