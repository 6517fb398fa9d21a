# SPDX-License-Identifier: Apache-2.0
"""The short way through a SuperLink ends as the long one does, or is not taken."""

import asyncio
import importlib
import inspect
from base64 import b64encode
from collections.abc import Generator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from agnosticfl.deploy.flower import short
from agnosticfl.deploy.flower.short import CALLS, FLEET, MOST, Short
from tests.deploy.links import Link, linked

fleet: Any = importlib.import_module("flwr.proto.fleet_pb2")
keys: Any = importlib.import_module("flwr.supercore.primitives.asymmetric")
dates: Any = importlib.import_module("flwr.supercore.date")


def test_what_is_used_of_flower_s_inside_is_there():
    layers = importlib.import_module("flwr.superlink.main")._get_middleware()
    names = [getattr(layer.cls, "__name__", "") for layer in layers]
    assert names[-2:] == ["NodeAuthMiddleware", "FleetEventLogMiddleware"]
    router = importlib.import_module("flwr.superlink.routers.fleet.router")
    source = inspect.getsource(router)
    assert source.count("Depends(") == 3  # of the version, the state and a switch
    assert "reject_incompatible=False" in source
    for call, store in CALLS.items():
        handler = getattr(short._handlers, call.replace("-", "_"))
        expected = ["request", "state", *(["store"] if store else [])]
        assert list(inspect.signature(handler).parameters) == expected
        assert ("POST", f"{FLEET}{call}") in short._types
    checks = inspect.getsource(short._auth.NodeAuthMiddleware)
    assert "await run_in_threadpool(authenticate_node, request)" in checks
    # As it is without Flower's own option.
    assert "if plugin is None" in inspect.getsource(layers[-1].cls)


class Client(NamedTuple):
    """A node with a key."""

    link: Link
    key: Any
    node: int

    def head(self, key: Any = None) -> list[tuple[bytes, bytes]]:
        now, own = dates.now().isoformat(), key or self.key
        public = keys.public_key_to_bytes(self.key.public_key())
        signed = keys.sign_message(own, now.encode("ascii"))
        return [
            (b"content-type", short._media.encode()),
            (b"flwr-public-key", b64encode(public)),
            (b"flwr-timestamp", now.encode()),
            (b"flwr-signature", b64encode(signed)),
        ]

    def pull(self, node: int | None = None) -> bytes:
        request = fleet.PullMessagesRequest()
        request.node.node_id = self.node if node is None else node
        return request.SerializeToString()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Client]:
    with linked(tmp_path, monkeypatch) as link:
        key = ec.generate_private_key(ec.SECP384R1())
        public = keys.public_key_to_bytes(key.public_key())
        node = link.state.create_node("aid", "name", public, 30.0)
        link.state.activate_node(node, 30.0)
        yield Client(link._replace(node=node), key, node)


class Said(NamedTuple):
    status: int
    content: bytes
    long: list[bytes]  # what went the long way


def ask(
    client: Client, call: str, body: bytes, head: list[tuple[bytes, bytes]], **more: Any
) -> Said:
    long, said = list[bytes](), list[dict[str, Any]]()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Mapping[str, Any]:
        return incoming.pop()

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def flower(_scope: Any, receive: Any, send: Any) -> None:
        long.append((await receive())["body"])
        await send({"status": 418})
        await send({"body": b""})

    factory = SimpleNamespace(state=lambda: client.link.state)
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{FLEET}{call}",
        "headers": [*head, (b"content-length", str(len(body)).encode())],
        "app": SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory)),
        **more,
    }
    asyncio.run(Short(flower)(scope, receive, send))
    return Said(said[0]["status"], said[1]["body"], long)


def test_a_client_s_message_is_given_the_short_way(client: Client):
    sent = client.link.send()
    said = ask(client, "pull-messages", client.pull(), client.head())
    assert (said.status, said.long) == (200, [])
    (tree,) = fleet.PullMessagesResponse.FromString(said.content).message_object_trees
    assert tree.object_id == sent


@pytest.mark.attack(
    "somebody without the key of a client looks for its messages",
    "the short way has Flower's own check of who asks; who fails it goes the long way",
)
@pytest.mark.parametrize("wrong", ["signature", "number", "no key", "old"])
def test_who_is_not_the_client_goes_the_long_way(client: Client, wrong: str):
    client.link.send()
    head, body = client.head(), client.pull()
    if wrong == "signature":
        head = client.head(ec.generate_private_key(ec.SECP384R1()))
    if wrong == "number":
        other = ec.generate_private_key(ec.SECP384R1())
        client.link.state.create_node(
            "aid", "name", keys.public_key_to_bytes(other.public_key()), 30.0
        )
        head = client._replace(key=other).head()
    if wrong == "no key":
        head = head[:1]
    if wrong == "old":
        head[2] = (b"flwr-timestamp", b"2020-01-01T00:00:00+00:00")
    assert ask(client, "pull-messages", body, head) == Said(418, b"", [body])
    assert len(client.link.look()) == 1  # it still waits for its own


@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("activate-node", {}),
        ("push-object", {}),
        ("pull-messages", {"path": "/v1/runtime/pull-messages"}),
        ("pull-messages", {"path": "pull-messages"}),
        ("pull-messages", {"method": "GET"}),
        ("pull-messages", {"headers": []}),
    ],
)
def test_what_is_not_such_a_call_goes_the_long_way(client: Client, call: str, more: dict[str, Any]):
    body = client.pull()
    assert ask(client, call, body, client.head(), **more).long == [body]


def test_what_a_handler_refuses_goes_the_long_way_to_be_refused(client: Client):
    """Here a reply to no message, of a run that has not begun."""
    request = fleet.PushMessagesRequest()
    request.node.node_id = client.node
    body = request.SerializeToString()
    assert ask(client, "push-messages", body, client.head()).long == [body]


def test_a_long_request_goes_the_long_way_and_one_that_lies_about_it_no_way(client: Client):
    head, length = client.head(), (b"content-length", str(MOST + 1).encode())
    said = ask(client, "pull-messages", bytes(10), head, headers=[*head, length])
    assert said.long == [bytes(10)]
    short_of_it = [*head, (b"content-length", b"10")]
    said = ask(client, "pull-messages", bytes(MOST + 1), head, headers=short_of_it)
    assert (said.status, said.long) == (413, [])
