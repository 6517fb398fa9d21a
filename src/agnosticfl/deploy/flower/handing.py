# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that takes and gives the parts of messages with them (`whole`).

It is done around Flower's own handlers of messages, each in one transaction: whether somebody may
send or fetch a message, and which of its parts are missing, stays Flower's to say.

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_whole.py` fails if it changes.
"""

import functools
import importlib
from collections.abc import Callable, Collection
from typing import Any

from agnosticfl.deploy.flower.shelf import Shelf, carrying
from agnosticfl.deploy.flower.whole import ROOM, enclose, enclosed, fitting, names_in, wanted

_fleet: Any = importlib.import_module("flwr.superlink.servicer.fleet.fleet_handlers")
_runtime: Any = importlib.import_module("flwr.superlink.servicer.runtime.runtime_handlers")
_sql: Any = importlib.import_module("flwr.supercore.object_store.sql_object_store")


def taking_parts(push: Callable[..., Any], shelf: Shelf) -> Callable[..., Any]:
    """Flower's handler of messages that come in, which takes the parts that come with them.

    Messages that are whole are put on the shelf; if one is not, all are stored as Flower does it.
    """

    @functools.wraps(push)
    def push_messages(request: Any, state: Any, *task: Any) -> Any:
        parts = enclosed(request)
        if not parts:
            return push(request, state, *task)
        whole = all(names_in(tree) <= parts.keys() for tree in request.message_object_trees)
        with state.session():
            if whole and shelf.has_room():
                with carrying(parts):
                    return push(request, state, *task)
            answer = push(request, state, *task)
            run, session = request.messages_list[0].metadata.run_id, answer.session_id
            missing = [
                name
                for name in answer.objects_to_push
                if name not in parts or not state.store_object(run, session, name, parts[name])
            ]
            del answer.objects_to_push[:]
            answer.objects_to_push.extend(missing)
        return answer

    return push_messages


def giving_parts(
    pull: Callable[..., Any], shelf: Shelf, given: Callable[[Any, str], None] = lambda *_: None
) -> Callable[..., Any]:
    """Flower's handler of messages that go out, which gives parts to who wants them.

    Args:
      given: what is done with a message of which all parts are given.
    """

    @functools.wraps(pull)
    def pull_messages(request: Any, state: Any, *more: Any, **named: Any) -> Any:
        if not wanted(request):
            return pull(request, state, *more, **named)
        with state.session():
            answer, parts = pull(request, state, *more, **named), dict[str, bytes]()
            for tree in answer.message_object_trees:
                names, room = names_in(tree), ROOM - sum(map(len, parts.values()))
                lying = shelf.parts(tree.object_id)
                there = lying.items() if lying else _stored(state.object_store, names, room)
                parts |= fitting(((n, part) for n, part in there if n not in parts), room)
                if names <= parts.keys():
                    given(state, tree.object_id)
            enclose(answer, parts)
        return answer

    return pull_messages


def _stored(store: Any, names: Collection[str], room: int) -> list[tuple[str, bytes]]:
    """Of these parts, those that are there and are not too long."""
    table = _sql.StoredObject
    length = _sql.func.length(table.content)
    rows = _sql.select(table.object_id, table.content)
    own = rows.where(table.object_id.in_(names), table.is_available == 1, length <= room)
    with store.session() as session:
        return [(name, content) for name, content in session.execute(own)]


def install(shelf: Shelf) -> None:
    """Puts this into Flower's SuperLink.

    A reply that was given to the run is gone from Flower's lists then, whether it arrives or not:
    so its parts need not wait for a receipt. A client's message does (`delivering`).
    """
    _fleet.push_messages = taking_parts(_fleet.push_messages, shelf)
    _fleet.pull_messages = giving_parts(_fleet.pull_messages, shelf)
    _runtime.push_messages = taking_parts(_runtime.push_messages, shelf)
    _runtime.pull_messages = giving_parts(
        _runtime.pull_messages, shelf, lambda state, message: state.object_store.delete(message)
    )
