# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that answers when there is something to say, and loses no message on the way.

Flower's has no message, or one, when a client asks: so clients ask again and again, at 8 ms of the
server's processor each, and are late by half of the time between two looks. Here who asks is
answered when a message is there (`Hold`), and most of those for whom none is are answered
without any of Flower's work.

Flower gives a message away when it is asked for it. If the answer gets lost (a cut, a gate that is
killed), the message is. But both kinds of clients confirm what they have got before they ask for
the next, so what was not confirmed by then was lost, and is given again (`Delivering`).

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_delivering.py` fails if it changes.
"""

import asyncio
import binascii
import importlib
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agnosticfl.deploy.flower.alive import Alive
from agnosticfl.deploy.flower.asgi import Receive, Send, answer, body_of, replayed
from agnosticfl.deploy.flower.mail import Mail, Receiver
from agnosticfl.deploy.flower.shelf import Shelf, shelving
from agnosticfl.deploy.flower.short import Short
from agnosticfl.deploy.flower.sparing import sparing

HOLD = 20.0  # seconds that a client waits for a message in one request; Flower's clients give it 30
SOON = 1.0  # seconds that the run waits for replies: of lost clients only Flower's own answer tells
PASSED = 3  # of so many requests in vain, one gets Flower's own answer
TIMES = 5  # that something is given again to who does not confirm it: it may be what he cannot read
MOST = 2**20  # bytes of a request that is held

FLEET, RUNTIME = "/v1/fleet/pull-messages", "/v1/runtime/pull-messages"

_sql: Any = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate")
_factory: Any = importlib.import_module("flwr.server.superlink.linkstate.linkstate_factory")
_fleet: Any = importlib.import_module("flwr.proto.fleet_pb2")
_runtime: Any = importlib.import_module("flwr.proto.runtime_pb2")
_key: str = importlib.import_module("flwr.supercore.constant").FLEET_HTTP_PUBLIC_KEY_HEADER

Nodes: TypeAlias = dict[bytes, int]  # a node's public key -> its number


def delivering(mail: Mail, nodes: Nodes, alive: Alive, shelf: Shelf) -> type:
    """Flower's state of a SuperLink that tells `mail` what it takes in and gives away.

    Args:
      nodes: filled with those that have asked for something, and asked in place of the state.
      alive: told who signs off.
      shelf: has the messages that came with all their parts.
    """
    base: Any = shelving(sparing(_sql.SqlLinkState), shelf)

    class Delivering(base):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self._settled: set[int] = set()  # nodes that have confirmed all that they got
            self._times = Counter[int]()  # that a node was given something again, since then

        def store_message_and_object_tree(
            self, message: Any, object_tree: Any, session_id: str
        ) -> tuple[bool, list[str]]:
            stored, missing = super().store_message_and_object_tree(
                message, object_tree, session_id
            )
            if stored:
                about = message.metadata
                receiver = about.reply_to_message_id or about.dst_node_id
                mail.note_posted(receiver, about.message_id, missing)
            return stored, missing

        def store_object(self, run_id: int, session_id: str, object_id: str, *content: Any) -> bool:
            stored: bool = super().store_object(run_id, session_id, object_id, *content)
            if stored:
                mail.note_part(object_id)
            return stored

        def get_message_ins(self, node_id: int, limit: int | None, **options: Any) -> list[Any]:
            if node_id not in self._settled and self._times[node_id] < TIMES:
                self._give_back(node_id)
            before = mail.here(node_id)
            found: list[Any] = super().get_message_ins(node_id, limit, **options)
            if found:
                self._settled.discard(node_id)
            else:
                self._settled.add(node_id)
                del self._times[node_id]
            # If there is none, what was here before has ended.
            taken = [message.metadata.message_id for message in found]
            mail.note_fetched(node_id, taken or before)
            return found

        def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
            node = nodes.get(public_key)
            if node is None:
                with self.session():  # so that nothing is removed in between
                    node = super().get_node_id_by_public_key(public_key)
                    if node is not None:
                        nodes[public_key] = node
            return node

        def delete_node(self, owner_aid: str, node_id: int) -> None:
            with self.session():
                super().delete_node(owner_aid, node_id)
                for key in [key for key, node in list(nodes.items()) if node == node_id]:
                    del nodes[key]

        def acknowledge_nodes(self, node_ids: Sequence[int], interval: float) -> None:
            """What `acknowledge_node_heartbeat` does, for many nodes at once."""
            table, now = _sql.NodeModel, _sql.now()
            before = (table.status != _sql.NodeStatus.ONLINE, now.isoformat())
            changes = {
                "online_until": now.timestamp() + _sql.HEARTBEAT_PATIENCE * interval,
                "heartbeat_interval": interval,
                "last_activated_at": _sql.case(before, else_=table.last_activated_at),
                "status": _sql.NodeStatus.ONLINE,
            }
            own = table.node_id.in_([_sql.uint64_to_int64(node) for node in node_ids])
            known = table.status != _sql.NodeStatus.UNREGISTERED
            with self.session() as session:
                session.execute(_sql.update(table).where(own, known).values(**changes))

        def deactivate_node(self, node_id: int) -> bool:
            alive.note_leaving(node_id)
            left: bool = super().deactivate_node(node_id)
            return left

        def get_message_res(self, message_ids: set[str], run_id: int) -> list[Any]:
            found: list[Any] = super().get_message_res(message_ids, run_id)
            for reply in found:
                about = reply.metadata
                mail.note_fetched(about.reply_to_message_id, mail.here(about.reply_to_message_id))
            return found

        def _give_back(self, node_id: int) -> None:
            """Makes messages as new that were given away and not confirmed."""
            table = _sql.MessageInsModel
            own = table.dst_node_id == _sql.uint64_to_int64(node_id)
            valid = table.created_at + table.ttl > _sql.now().timestamp()
            with self.session() as session:
                given = session.scalars(
                    _sql.select(table.message_id).where(own, table.delivered_at != "", valid)
                ).all()
                lost = [message for message in given if message in self.object_store]
                if lost:
                    self._times[node_id] += 1
                    session.execute(
                        _sql.update(table).where(table.message_id.in_(lost)).values(delivered_at="")
                    )

    return Delivering


class Hold:
    """An ASGI application in front of Flower's: who asks for messages waits here for them.

    A node waits for its own only. Whoever asks in another's name is Flower's to refuse, at once: an
    answer that comes when there is a message would tell him when the other one is asked. That the
    key in a request's head is the sender's own was checked by the gate.
    """

    def __init__(
        self,
        app: Any,
        mail: Mail,
        nodes: Nodes,
        alive: Alive,
        hold: float = HOLD,
        soon: float = SOON,
    ):
        self.app, self.mail, self.nodes, self.alive = app, mail, nodes, alive
        self.hold, self.soon = hold, soon
        self._in_vain: dict[int, int] = {}  # requests of a node since Flower answered one

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path not in (FLEET, RUNTIME):
            await self.app(scope, receive, send)
            return
        body = await body_of(receive, MOST)
        if body is None:  # longer than any request of these
            await answer(send, 413)
        elif path == RUNTIME:
            await self._wait(_replies(body), self.soon, receive)
            await self.app(scope, replayed(body, receive), send)
        elif await self._worth(self._own(scope, body), receive):
            await self.app(scope, replayed(body, receive), send)
        else:
            await answer(send, 200)  # nothing: a `PullMessagesResponse` with no message

    def _own(self, scope: Mapping[str, Any], body: bytes) -> int | None:
        """Who asks for messages; None if that is not the node of the key, or not known to be."""
        node = _node(body)
        return node if node is not None and self.nodes.get(_public_key(scope)) == node else None

    async def _worth(self, node: int | None, receive: Receive) -> bool:
        """Whether Flower may have a message for a node, after a time; now and then, in any case."""
        if node is None:
            return True
        times = self._in_vain.get(node, PASSED)
        if times >= PASSED:
            self.alive.note_look(node)
            self._in_vain[node] = 0
            return True
        found = await self._wait([node], self.hold, receive)
        if found is None:
            return False
        self.alive.note_look(node)
        self._in_vain[node] = times if found else times + 1
        return found

    async def _wait(
        self, receivers: Iterable[Receiver], seconds: float, receive: Receive
    ) -> bool | None:
        """Whether something is here for one of them, after a time; None if who asks is gone."""
        arrived = asyncio.ensure_future(self.mail.wait(list(receivers), seconds))
        gone = asyncio.ensure_future(receive())  # what comes after the body is the end
        try:
            await asyncio.wait({arrived, gone}, return_when=asyncio.FIRST_COMPLETED)
            return arrived.result() if arrived.done() else None
        finally:
            arrived.cancel()
            gone.cancel()


def _public_key(scope: Mapping[str, Any]) -> bytes:
    """The key that a request comes with; empty if there is none, of which no node is known."""
    found = [value for name, value in scope["headers"] if name == _key.encode()]
    try:
        return b64decode(found[0], validate=True) if len(found) == 1 else b""
    except binascii.Error:
        return b""


def _node(body: bytes) -> int | None:
    """Who asks for messages; None if Flower must say what is wrong with the request."""
    try:
        return _fleet.PullMessagesRequest.FromString(body).node.node_id
    except Exception:  # of protobuf, whose implementations have errors of their own
        return None


def _replies(body: bytes) -> list[str]:
    """The messages to which replies are asked for."""
    try:
        return list(_runtime.PullAppMessagesRequest.FromString(body).message_ids)
    except Exception:  # as above: Flower says what is wrong
        return []


def install(module: Any, mail: Mail, shelf: Shelf) -> None:
    """Puts `Delivering`, `Hold` and `Short` into Flower's SuperLink, whose main module is given."""
    import uvicorn

    nodes, alive = Nodes(), Alive()
    _factory.SqlLinkState = delivering(mail, nodes, alive, shelf)
    create, shutdown = module.create_app, uvicorn.Server.shutdown

    def create_app(*args: Any, **options: Any) -> Any:
        app = create(*args, **options)
        app.add_middleware(Short)
        app.add_middleware(Hold, mail=mail, nodes=nodes, alive=alive)
        state = app.state.linkstate_factory.state()
        threading.Thread(target=alive.keep_writing, args=[state], daemon=True).start()
        return app

    async def ending(server: Any, sockets: Any = None) -> None:
        mail.close()  # or it would wait for those who wait
        await shutdown(server, sockets)

    module.create_app = create_app
    uvicorn.Server.shutdown = ending  # type: ignore[method-assign]
