# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that answers when there is something to say, and gives what was lost again."""

import asyncio
import datetime
import importlib
import inspect
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agnosticfl.deploy.flower import delivering, mail
from agnosticfl.deploy.flower.alive import INTERVAL, Alive
from agnosticfl.deploy.flower.delivering import FLEET, RUNTIME, Hold
from agnosticfl.deploy.flower.mail import Mail
from tests.deploy.links import Link, linked


def test_what_is_used_of_flower_s_inside_is_there():
    state = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate").SqlLinkState
    arguments: dict[Callable[..., Any], list[str]] = {
        state.store_message_and_object_tree: ["self", "message", "object_tree", "session_id"],
        state.get_message_ins: ["self", "node_id", "limit", "run_id"],
        state.get_message_res: ["self", "message_ids", "run_id"],
        state.get_node_id_by_public_key: ["self", "public_key"],
        state.acknowledge_node_heartbeat: ["self", "node_id", "heartbeat_interval"],
        state.delete_node: ["self", "owner_aid", "node_id"],
        state.deactivate_node: ["self", "node_id"],
        state.store_object: ["self", "run_id", "session_id", "object_id", "object_content"],
    }
    for function, names in arguments.items():
        assert list(inspect.signature(function).parameters) == names
    routes = importlib.import_module("flwr.supercore.protobuf.translation").PROTOBUF_REQUEST_TYPES
    assert routes["POST", FLEET] is delivering._fleet.PullMessagesRequest
    assert routes["POST", RUNTIME] is delivering._runtime.PullAppMessagesRequest
    client = importlib.import_module("flwr.supercore.protobuf.client").ProtobufClient
    given = inspect.signature(client).parameters["timeout"].default
    assert given > delivering.HOLD + 5


def waited(post: Mail, receivers: list[Any], seconds: float = 5.0) -> bool:
    return asyncio.run(post.wait(receivers, seconds))


def test_a_message_is_here_when_its_last_part_is():
    post = Mail()
    post.note_posted(1, "a", [])
    post.note_posted(2, "b", ["x", "y"])
    post.note_posted(3, "c", ["y"])
    assert waited(post, [1])
    post.note_part("x")
    assert not waited(post, [2, 3], 0.01)
    post.note_part("y")
    assert (post.here(2), post.here(3)) == ({"b"}, {"c"})
    post.note_fetched(2, ["b"])
    assert not waited(post, [2], 0.01)
    assert waited(post, [2, 3])


def test_who_waits_is_woken_by_another_thread_and_by_the_end():
    post = Mail()
    for wake in (lambda: post.note_posted("reply", "a", []), post.close):
        threading.Timer(0.05, wake).start()
        begun = time.monotonic()
        assert waited(post, ["other", "reply"])
        assert time.monotonic() - begun < 4
        post.note_fetched("reply", ["a"])
    assert waited(post, ["nobody"])  # after the end


def test_what_nobody_fetches_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mail, "MANY", 2)
    post = Mail()
    for number in range(4):
        post.note_posted(number, f"whole {number}", [])
        post.note_posted(10 + number, f"half {number}", ["part"])
    assert [bool(post.here(number)) for number in range(4)] == [False, False, True, True]
    post.note_part("part")
    assert [bool(post.here(10 + number)) for number in range(4)] == [False, False, True, True]


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Link]:
    with linked(tmp_path, monkeypatch) as link:
        yield link


def test_a_message_whose_delivery_was_lost_is_given_again(link: Link):
    first = link.send()
    assert link.post.here(link.node) == {first}
    assert link.look() == [first]
    assert not link.post.here(link.node)
    assert link.look() == [first]  # it was not confirmed, and who asks again has not got it
    link.confirm(first)
    assert link.look() == []
    second = link.send()
    assert link.look() == [second]
    link.confirm(second)
    assert link.look() == link.look() == []


def test_a_message_that_a_client_cannot_read_is_not_given_for_ever(link: Link):
    first = link.send()
    assert [link.look() for _ in range(delivering.TIMES + 3)] == (
        [[first]] * (delivering.TIMES + 1) + [[], []]
    )


def test_a_superlink_that_was_restarted_gives_again_what_was_lost(link: Link):
    first = link.send()
    assert link.look() == [first]
    link.state._settled.clear()
    link.state._times.clear()
    assert link.look() == [first]


def test_whose_a_number_is_is_known_once_flower_has_asked_for_it(link: Link):
    assert not link.nodes
    assert link.state.get_node_id_by_public_key(b"key") == link.node
    assert link.nodes == {b"key": link.node}
    assert link.state.get_node_id_by_public_key(b"another") is None
    link.state.delete_node("aid", link.node)
    assert link.state.get_node_id_by_public_key(b"key") is None
    assert not link.nodes


def online(link: Link) -> tuple[str, float]:
    """What Flower knows of the client, and for how many seconds it will."""
    (info,) = link.state.get_node_info(node_ids=[link.node])
    return info.status, info.online_until - time.time()


def test_a_client_that_looks_is_alive_until_it_signs_off(
    link: Link, monkeypatch: pytest.MonkeyPatch
):
    now = time.time()
    dates = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate")
    later = datetime.datetime.fromtimestamp(now + 50.0, tz=datetime.UTC)
    monkeypatch.setattr(dates, "now", lambda: later)
    assert online(link)[1] < 2 * INTERVAL
    link.alive.note_look(link.node)
    link.alive.write(link.state)
    status, left = online(link)
    assert status == "online"
    assert left > 2 * INTERVAL + 45.0
    link.alive.note_look(link.node)
    assert link.state.deactivate_node(link.node)
    link.alive.write(link.state)
    assert online(link)[0] == "offline"


def test_many_nodes_are_acknowledged_as_flower_does_it_for_one(link: Link):
    others = [link.state.create_node("aid", "name", bytes([n]), 30.0) for n in range(3)]
    link.state.activate_node(others[0], 15.0)
    link.state.acknowledge_node_heartbeat(link.node, 40.0)
    link.state.delete_node("aid", others[2])
    link.state.acknowledge_nodes(others, 40.0)
    infos = link.state.get_node_info(node_ids=[link.node, *others])
    found = {info.node_id: info for info in infos}
    (theirs, *ours), removed = (found[node] for node in (link.node, *others[:2])), found[others[2]]
    for info in ours:
        assert (info.status, info.heartbeat_interval) == ("online", theirs.heartbeat_interval)
        assert info.online_until == pytest.approx(theirs.online_until, abs=5.0)
        assert info.last_activated_at
    assert removed.status == "unregistered"


class Asked(NamedTuple):
    """What became of a request."""

    passed: bool  # whether Flower was asked
    status: int
    seconds: float


KEY = b"the key of node 7"
NODES = {KEY: 7}


def ask(
    hold: Hold, path: str, body: bytes, gone: float | None = None, keys: tuple[bytes, ...] = (KEY,)
) -> Asked:
    """Plays one request with a node's key; whoever asks goes away after some seconds."""
    headers = [(b"flwr-public-key", b64encode(key)) for key in keys]
    passed, said = list[bytes](), list[int]()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Mapping[str, Any]:
        if incoming:
            return incoming.pop()
        await asyncio.sleep(60.0 if gone is None else gone)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message.get("status", 0))

    async def flower(_scope: Any, receive: Any, send: Any) -> None:
        passed.append((await receive())["body"])
        await send({"status": 201})

    hold.app = flower
    begun = time.monotonic()
    asyncio.run(hold({"path": path, "headers": headers}, receive, send))
    assert passed in ([], [body])
    return Asked(bool(passed), max(said, default=0), time.monotonic() - begun)


def pull(node: int) -> bytes:
    request = delivering._fleet.PullMessagesRequest()
    request.node.node_id = node
    return request.SerializeToString()


@pytest.fixture
def post() -> Mail:
    return Mail()


def test_a_client_s_request_is_held_until_a_message_is_there(post: Mail):
    hold = Hold(None, post, NODES, Alive(), hold=5.0)
    assert ask(hold, FLEET, pull(7)).passed  # nothing is known of a client that is new
    threading.Timer(0.1, post.note_posted, (7, "a", [])).start()
    asked = ask(hold, FLEET, pull(7))
    assert asked.passed
    assert 0.05 < asked.seconds < 4
    assert ask(hold, FLEET, pull(7)).seconds < 1  # until it is fetched


def test_of_requests_in_vain_only_some_get_flower_s_own_answer(post: Mail):
    hold = Hold(None, post, NODES, Alive(), hold=0.01)
    asked = [ask(hold, FLEET, pull(7)) for _ in range(9)]
    assert [one.passed for one in asked] == [True, False, False, False] * 2 + [True]
    assert {one.status for one in asked} == {200, 201}
    assert ask(hold, "/v1/fleet/push-messages", b"anything").passed


@pytest.mark.attack(
    "a client looks for messages in another's name, to learn when that one is asked",
    "a client waits for its own messages only; others' are refused at once",
)
@pytest.mark.parametrize("keys", [(b"the key of node 8",), (b"a new key",), (), (KEY, KEY)])
def test_who_looks_with_another_s_number_is_not_held(post: Mail, keys: tuple[bytes, ...]):
    """Or the time of the answer would tell him when the other one is asked."""
    hold = Hold(None, post, {**NODES, b"the key of node 8": 8}, Alive(), hold=5.0)
    assert ask(hold, FLEET, pull(7)).passed
    for _ in range(delivering.PASSED + 2):  # each time, whatever the other one did before
        asked = ask(hold, FLEET, pull(7), keys=keys)
        assert asked.passed
        assert asked.seconds < 2
    threading.Timer(0.1, post.note_posted, (7, "a", [])).start()
    assert 0.05 < ask(hold, FLEET, pull(7)).seconds < 4  # and the other one still is


def test_a_look_says_that_its_own_node_is_alive(post: Mail):
    hold = Hold(None, post, NODES, alive := Alive(), hold=0.01)
    ask(hold, FLEET, pull(8))
    assert alive._looked == set()
    ask(hold, FLEET, pull(7))
    assert alive._looked == {7}
    alive._looked.clear()
    ask(hold, FLEET, pull(7))  # whether it is held or not
    assert alive._looked == {7}


def test_numbers_that_somebody_makes_up_are_not_remembered(post: Mail):
    hold = Hold(None, post, NODES, Alive(), hold=0.01)
    assert all(ask(hold, FLEET, pull(number)).passed for number in range(1, 30))
    assert list(hold._in_vain) == [7]


def test_nothing_is_fetched_for_who_is_gone(post: Mail):
    hold = Hold(None, post, NODES, Alive(), hold=30.0)
    ask(hold, FLEET, pull(7))
    hold.alive._looked.clear()
    asked = ask(hold, FLEET, pull(7), gone=0.05)
    assert not asked.passed
    assert asked.seconds < 5
    assert not hold.alive._looked  # it may have signed off


def test_replies_are_waited_for_a_second_at_most(post: Mail):
    hold = Hold(None, post, NODES, Alive(), soon=0.05)
    body = delivering._runtime.PullAppMessagesRequest(message_ids=["a", "b"]).SerializeToString()
    asked = ask(hold, RUNTIME, body)
    assert asked.passed
    assert asked.seconds >= 0.05
    hold.soon = 30.0
    post.note_posted("b", "the reply", [])
    assert ask(hold, RUNTIME, body).seconds < 5


@pytest.mark.parametrize("path", [FLEET, RUNTIME])
def test_what_is_no_request_is_flower_s_to_refuse_and_a_long_one_is_refused(path: str, post: Mail):
    hold = Hold(None, post, NODES, Alive(), hold=0.01, soon=0.01)
    assert ask(hold, path, b"\xff\xff").passed
    assert ask(hold, path, bytes(delivering.MOST + 1))[:2] == (False, 413)
