# SPDX-License-Identifier: Apache-2.0
"""Messages whose parts come with them, by Flower's own code and a real state of a SuperLink."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from agnosticfl.deploy.flower import connection, handing, whole, whole_grid
from agnosticfl.deploy.flower.connection import Connection, WholeFleet, pull, push
from agnosticfl.deploy.flower.whole import enclose, enclosed, fitting, push_some, want, wanted
from agnosticfl.deploy.flower.whole_grid import WholeRuntime, use_whole
from agnosticfl.deploy.keys import make_node_key, read_node_key
from tests.deploy.links import Link, linked

inside: Callable[[str], Any] = importlib.import_module
fleet, runtime = inside("flwr.proto.fleet_pb2"), inside("flwr.proto.runtime_pb2")
HEADS = [
    *(fleet.PushMessagesRequest, fleet.PullMessagesRequest, fleet.PullMessagesResponse),
    *(runtime.PushAppMessagesRequest, runtime.PullAppMessagesRequest),
    runtime.PullAppMessagesResponse,
]


def test_what_is_used_of_flower_s_inside_is_there():
    for head in HEADS:
        assert not {whole.PARTS, whole.WANTED} & set(head.DESCRIPTOR.fields_by_number)
    # Handlers are called by their names in these modules, with these arguments.
    ways = inspect.getsource(inside("flwr.superlink.routers.fleet.router"))
    assert "fleet_handlers.push_messages(request=request, state=state)" in ways
    assert "fleet_handlers.pull_messages(\n        request=request, state=state, store=" in ways
    ways = inspect.getsource(inside("flwr.supercore.routers.runtime.router"))
    for name in ("push_messages", "pull_messages"):
        assert f"handlers.{name}(request, state, task)" in ways
    assert inside("flwr.superlink.main")._RUNTIME_HANDLERS is handing._runtime
    grid = inspect.getsource(whole_grid._grid.HttpGrid)
    for name in ("PushMessages", "PushObject", "PullMessages", "PullObject"):
        assert f"self._runtime_client.{name}" in grid
    assert "object_ids_to_push=set(res.objects_to_push)" in grid
    assert "self._client = RuntimeHttpClient.from_server_address(" in grid
    assert connection._http.FleetHttpClient is WholeFleet


@pytest.mark.parametrize("kind", HEADS)
def test_parts_are_in_a_field_that_flower_passes_by(kind: Any):
    plain, head = kind(), kind()
    enclose(head, {"a": b"1" * 300, "b": b""})
    want(head)
    want(head)
    read = kind.FromString(head.SerializeToString(deterministic=True))
    assert enclosed(read) == {"a": b"1" * 300, "b": b""}
    assert (wanted(read), wanted(plain), enclosed(plain)) == (True, False, {})
    assert read.ListFields() == plain.ListFields()
    enclose(plain, {})
    assert plain.SerializeToString() == b""


def test_what_is_no_part_is_none():
    head = fleet.PushMessagesRequest()
    head.MergeFromString(whole._field(whole.PARTS, b"\xff\xff"))
    assert enclosed(head) == {}


def test_parts_come_as_long_as_there_is_room():
    parts = {"a": bytes(60), "b": bytes(50), "c": bytes(40)}
    assert fitting(parts.items(), 100).keys() == {"a", "c"}


class Server:
    """A SuperLink without its interfaces: what a client asks for is answered by the handlers."""

    def __init__(self, link: Link):
        self.link, self.task = link, SimpleNamespace(run_id=link.run)
        self.asked: list[str] = []

    def answer(self, *, path: str, request: Any, response_type: Any, **_: Any) -> Any:
        interface, call = path.split("/")[2:]
        self.asked.append(call)
        name, state = call.replace("-", "_"), self.link.state
        request = type(request).FromString(request.SerializeToString(deterministic=True))
        if call == "activate-node":
            return response_type(node_id=self.link.node)
        if interface == "runtime":
            found = getattr(handing._runtime, name)(request, state, self.task)
        elif call in ("pull-messages", "confirm-message-received"):
            store = state.object_store
            found = getattr(handing._fleet, name)(request=request, state=state, store=store)
        else:
            found = getattr(handing._fleet, name)(request=request, state=state)
        return response_type.FromString(found.SerializeToString())


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Link]:
    with linked(tmp_path, monkeypatch) as link:
        (task,) = link.state.get_tasks()
        assert link.state.claim_task(task.task_id)
        assert link.state.activate_task(task.task_id)
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = link.run, 2, 1
        yield link


@pytest.fixture
def server(link: Link, monkeypatch: pytest.MonkeyPatch) -> Server:
    """One that hands parts on."""
    for module in (handing._fleet, handing._runtime):
        for name in ("push_messages", "pull_messages"):
            monkeypatch.setattr(module, name, getattr(module, name))  # as it was, afterwards
    handing.install(link.shelf)
    return made(link, monkeypatch)


def made(link: Link, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(link)
    client = inside("flwr.supercore.protobuf.client").ProtobufClient
    monkeypatch.setattr(client, "_unary_unary", lambda _, **call: server.answer(**call))
    return server


@contextlib.contextmanager
def joined(tmp_path: Path, kind: Any = WholeFleet) -> Any:
    """A client's connection, by Flower's code."""
    make_node_key(tmp_path / "node.key")
    key = read_node_key(tmp_path / "node.key")
    connection._http.FleetHttpClient = kind
    try:
        with connection._http.http_request_response(
            "127.0.0.1:1", True, authentication_keys=(key, key.public_key())
        ) as parts:
            yield Connection(*parts)
    finally:
        connection._http.FleetHttpClient = WholeFleet


def grid_of(link: Link) -> Any:
    grid = whole_grid._grid.HttpGrid("127.0.0.1:1", True, token="token")
    grid.set_run(link.state.get_run_info(run_ids=[link.run])[0])
    return grid


def message(link: Link, numbers: int = 4, of: int = 0) -> Message:
    arrays = ArrayRecord({"w": Array(np.arange(numbers, dtype=np.float32))})
    content = RecordDict({"arrays": arrays, "own": ConfigRecord({"number": of})})
    return Message(content, link.node, "train", ttl=60.0)


def array_in(one: Message) -> np.ndarray:
    return one.content.array_records["arrays"]["w"].numpy()


def reply_to(one: Message) -> Message:
    return Message(RecordDict({"said": ConfigRecord({"x": 1})}), reply_to=one)


def test_a_message_and_its_reply_are_five_requests(server: Server, link: Link, tmp_path: Path):
    grid = grid_of(link)
    use_whole(grid)
    with joined(tmp_path) as line:
        (number,) = push_some(grid, [message(link)])
        received = line.receive()
        assert received is not None
        found = pull(line, link.run, received[1])
        np.testing.assert_array_equal(array_in(found), np.arange(4))
        push(line, link.run, reply_to(found))
        (reply,) = grid.pull_messages([number])
    assert reply.content["said"] == {"x": 1}
    assert server.asked == [
        *("activate-node", "push-messages", "pull-messages", "confirm-message-received"),
        *("push-messages", "pull-messages", "deactivate-node"),
    ]
    assert len(link.state.object_store) == 0  # nothing of it is left
    assert type(grid._client) is WholeRuntime


def test_a_part_that_has_no_room_goes_as_flower_sends_it(
    server: Server, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(whole, "ROOM", 2000)
    monkeypatch.setattr(handing, "ROOM", 2000)
    monkeypatch.setattr(whole.fitting, "__defaults__", (2000,))
    grid = grid_of(link)
    use_whole(grid)
    with joined(tmp_path) as line:
        (number,) = push_some(grid, [message(link, numbers=1000)])
        found = pull(line, link.run, line.receive()[1])
        np.testing.assert_array_equal(array_in(found), np.arange(1000))
        push(line, link.run, sent := reply_to(found))
        (reply,) = grid.pull_messages([number])
        assert reply.content == sent.content
    assert server.asked.count("push-object") == server.asked.count("pull-object") == 1


def test_many_messages_are_sent_some_at_once_and_their_replies_are_fetched_so(
    server: Server, link: Link, tmp_path: Path
):
    grid, many = grid_of(link), whole.AT_ONCE + 4
    use_whole(grid)
    numbers = push_some(grid, [message(link, of=n) for n in range(many)])
    assert len(set(numbers)) == many
    assert server.asked == ["push-messages"] * 2
    assert link.post.here(link.node) == set(numbers)  # all of them are whole
    with joined(tmp_path) as line:
        for _ in range(many):
            received = line.receive()
            assert received is not None
            push(line, link.run, reply_to(pull(line, link.run, received[1])))
        server.asked.clear()
        assert len(list(grid.pull_messages(numbers))) == many  # of which all say the same
    assert server.asked == ["pull-messages", "deactivate-node"]
    assert len(link.state.object_store) == 0


@pytest.mark.parametrize("old", ["client", "SuperLink"])
def test_who_does_not_know_of_it_sends_and_fetches_parts_one_by_one(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any, old: str
):
    if old == "client":
        server = request.getfixturevalue("server")
        kind = inside("flwr.supernode.fleet_http_client").FleetHttpClient
    else:
        server, kind = made(link, monkeypatch), WholeFleet
    grid = grid_of(link)
    use_whole(grid)
    with joined(tmp_path, kind) as line:
        (number,) = push_some(grid, [message(link)])
        found = pull(line, link.run, line.receive()[1])
        push(line, link.run, reply_to(found))
        (reply,) = grid.pull_messages([number])
    assert reply.content["said"] == {"x": 1}
    assert server.asked.count("pull-object") >= 6
    assert server.asked.count("push-object") >= 3
    assert len(link.state.object_store) == 0


@pytest.mark.attack(
    "a client sends, with its message, a part that is not what its name says",
    "parts are checked against their names, and the message is stored with them or not at all",
)
@pytest.mark.usefixtures("server")
def test_a_part_that_is_not_its_name_s_is_not_taken(link: Link, tmp_path: Path):
    grid = grid_of(link)
    use_whole(grid)
    with joined(tmp_path) as line:
        push_some(grid, [message(link)])
        found = pull(line, link.run, line.receive()[1])
        reply = reply_to(found)
        objects = whole._objects
        reply.metadata.__dict__["_message_id"] = reply.object_id
        request = fleet.PushMessagesRequest(message_object_trees=[objects.get_object_tree(reply)])
        request.messages_list.append(whole_grid._grid.message_to_proto(reply))
        parts = dict.fromkeys(objects.get_all_nested_objects(reply), b"nonsense")
        enclose(request, {**parts, "0" * 64: b"nobody asked for this"})
        before = len(link.state.object_store)
        with pytest.raises(ValueError, match="does not match its name"):
            handing._fleet.push_messages(request=request, state=link.state)
    assert (link.state.num_message_res(), len(link.state.object_store)) == (0, before)


@pytest.mark.usefixtures("server")
def test_parts_are_given_with_the_own_message_only(link: Link):
    """Who asks gets the parts of the message that Flower gives it, and of no other."""
    grid = grid_of(link)
    use_whole(grid)
    numbers = push_some(grid, [message(link, of=1), message(link, of=2)])
    request = fleet.PullMessagesRequest()
    request.node.node_id = link.node
    want(request)
    store = link.state.object_store
    found = handing._fleet.pull_messages(request=request, state=link.state, store=store)
    (tree,) = found.message_object_trees
    assert tree.object_id in numbers
    assert enclosed(found).keys() == whole.names_in(tree)
