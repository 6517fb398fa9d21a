# SPDX-License-Identifier: Apache-2.0
"""Small messages are kept in a SuperLink's memory until they are fetched, not in its database.

To write a message and its parts down, to find them and to forget them takes Flower some two
hundred statements, which is most of what a message costs. Who dies with a message that is not
fetched yet loses it, but so does the run: a new one begins with every SuperLink, and never asks
for what another one sent. That there is a message, for whom and until when, Flower still writes.

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_shelf.py` fails if it changes.
"""

import contextlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from agnosticfl.deploy.flower.whole import names_in

ROOM = 256 * 2**20  # bytes on the shelf; what comes then is written down
SECOND = 1.0  # between two looks for what has expired

_objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
_checks: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
_stores: Any = importlib.import_module("flwr.supercore.object_store.object_store_factory")

_carried: ContextVar[Mapping[str, bytes] | None] = ContextVar("parts of messages", default=None)


class _Lying(NamedTuple):
    """A message on the shelf."""

    run: int
    tree: Any
    parts: Mapping[str, bytes]
    until: float


class Shelf:
    """Messages by the names of their roots, with all their parts. Used by many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock, self._looked = clock, threading.RLock(), clock()
        self._lying: dict[str, _Lying] = {}
        self._parts: dict[str, bytes] = {}
        self._times = Counter[str]()  # in how many messages a part is
        self._size = 0

    def put(self, run: int, tree: Any, parts: Mapping[str, bytes], seconds: float) -> None:
        """Keeps a message for some seconds at most; ValueError if a part is not its name's."""
        own = {name: parts[name] for name in names_in(tree)}
        for name, content in own.items():
            if _objects.get_object_id(content) != name:
                raise ValueError(f"a part does not match its name, {name}")
            _checks.validate_object_content(content=content)
        with self._lock:
            self.take(tree.object_id)
            self._lying[tree.object_id] = _Lying(run, tree, own, self._clock() + seconds)
            self._times.update(own.keys())
            self._parts.update(own)
            self._size += sum(map(len, own.values()))

    def take(self, root: str) -> bool:
        """Takes a message down; whether it was there."""
        with self._lock:
            lying = self._lying.pop(root, None)
            if lying is None:
                return False
            self._size -= sum(map(len, lying.parts.values()))
            self._times.subtract(lying.parts.keys())
            for name in lying.parts:
                if self._times[name] == 0:
                    del self._times[name], self._parts[name]
            return True

    def take_all(self, run: int) -> None:
        """Those of a run that has ended."""
        with self._lock:
            for root in [root for root, lying in self._lying.items() if lying.run == run]:
                self.take(root)

    def tree(self, root: str) -> Any:
        """None if it is not there."""
        lying = self._lying.get(root)
        return lying and lying.tree

    def parts(self, root: str) -> Mapping[str, bytes] | None:
        """All parts of a message; None if it is not there."""
        lying = self._lying.get(root)
        return lying and lying.parts

    def part(self, name: str) -> bytes | None:
        return self._parts.get(name)

    def has_room(self) -> bool:
        """Whether there is, after what nobody fetched in time is gone."""
        with self._lock:
            now = self._clock()
            if now - self._looked >= SECOND:
                self._looked = now
                for root in [root for root, lying in self._lying.items() if lying.until < now]:
                    self.take(root)
            return self._size < ROOM

    def __len__(self) -> int:
        return len(self._parts)


@contextlib.contextmanager
def carrying(parts: Mapping[str, bytes]) -> Generator[None]:
    """Messages that are stored in this block are kept on the shelf, with these parts."""
    token = _carried.set(parts)
    try:
        yield
    finally:
        _carried.reset(token)


def shelving(base: Any, shelf: Shelf) -> Any:
    """`base`, a state of Flower's, that keeps on a shelf what comes with all its parts."""

    class Shelving(base):
        def start_session(self, run_id: int) -> str:
            """Of those in which parts are pushed: here none will be."""
            session: str = "" if _carried.get() else super().start_session(run_id)
            return session

        def store_message_and_object_tree(
            self, message: Any, object_tree: Any, session_id: str
        ) -> tuple[bool, list[str]]:
            parts, about = _carried.get(), message.metadata
            if not parts:
                found: tuple[bool, list[str]] = super().store_message_and_object_tree(
                    message, object_tree, session_id
                )
                return found
            store = self.store_message_res if about.reply_to_message_id else self.store_message_ins
            with self.session():
                stored = store(message) is not None
                if stored:
                    shelf.put(about.run_id, object_tree, parts, about.ttl)
            return stored, []

    return Shelving


def shelved(base: Any, shelf: Shelf) -> Any:
    """`base`, a store of Flower's, that has what is on a shelf too."""

    class Shelved(base):
        def get_object_tree(self, object_id: str) -> Any:
            return shelf.tree(object_id) or super().get_object_tree(object_id)

        def get(self, object_id: str) -> bytes | None:
            content = shelf.part(object_id)
            found: bytes | None = super().get(object_id) if content is None else content
            return found

        def delete(self, object_id: str) -> None:
            if not shelf.take(object_id):
                super().delete(object_id)

        def delete_objects_in_run(self, run_id: int) -> None:
            shelf.take_all(run_id)
            super().delete_objects_in_run(run_id)

        def __contains__(self, object_id: str) -> bool:
            return shelf.tree(object_id) is not None or super().__contains__(object_id)

        def __len__(self) -> int:
            return len(shelf) + int(super().__len__())

    return Shelved


def install(shelf: Shelf) -> None:
    """Puts `shelved` into Flower's SuperLink; `shelving` is part of `delivering`."""
    _stores.SqlObjectStore = shelved(_stores.SqlObjectStore, shelf)
