# SPDX-License-Identifier: Apache-2.0
"""The state of a real SuperLink, with one run and one client, without any of its interfaces."""

import contextlib
import importlib
import sqlite3
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from agnosticfl.deploy.flower import delivering
from agnosticfl.deploy.flower.alive import Alive
from agnosticfl.deploy.flower.mail import Mail
from agnosticfl.deploy.flower.shelf import Shelf, shelved

_empty: list[bytes] = []  # a database with Flower's tables, which take a second to be made


class Link(NamedTuple):
    """A real state of a SuperLink, with one run and one client, whose key is b"key"."""

    state: Any
    post: Mail
    nodes: delivering.Nodes
    alive: Alive
    shelf: Shelf
    run: int
    node: int

    def message(self) -> tuple[Message, Any, dict[str, bytes]]:
        """One to the client, its tree and its parts."""
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run, 2, 1
        content = RecordDict({"a": ConfigRecord({"time": time.time_ns()})})
        message = Message(content, self.node, "train", ttl=60.0)
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
        with objects.no_object_id_recompute():
            nested, tree = objects.get_all_nested_objects(message), objects.get_object_tree(message)
            return message, tree, {name: part.deflate() for name, part in nested.items()}

    def send(self) -> str:
        """A message to the client, of which no part is there yet."""
        message, tree, parts = self.message()
        session = self.state.start_session(self.run)
        stored, missing = self.state.store_message_and_object_tree(message, tree, session)
        assert stored
        assert not self.post.here(self.node)
        for name in missing:
            self.state.store_object(self.run, session, name, parts[name])
        return message.metadata.message_id

    def look(self) -> list[str]:
        return [found.metadata.message_id for found in self.state.get_message_ins(self.node, 1)]

    def confirm(self, message: str) -> None:
        self.state.object_store.delete(message)


@contextlib.contextmanager
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Link]:
    """Flower's own, with what is ours put into it; its database is closed at the end."""
    inside = importlib.import_module
    factories: Any = inside("flwr.server.superlink.linkstate.linkstate_factory")
    stores: Any = inside("flwr.supercore.object_store.object_store_factory")
    federations: Any = inside("flwr.superlink.federation.noop_federation_manager")
    constants: Any = inside("flwr.supercore.constant")
    post, nodes, alive, shelf = Mail(), delivering.Nodes(), Alive(), Shelf()
    database, tables = tmp_path / "superlink.db", inside("flwr.supercore.sql_mixin")
    if _empty:
        database.write_bytes(_empty[0])
        monkeypatch.setattr(tables, "run_migrations", lambda _: None)
    state = delivering.delivering(post, nodes, alive, shelf)
    monkeypatch.setattr(factories, "SqlLinkState", state)
    monkeypatch.setattr(stores, "SqlObjectStore", shelved(stores.SqlObjectStore, shelf))
    manager = federations.NoOpFederationManager()
    with warnings.catch_warnings():  # Flower's, of what makes its tables
        warnings.simplefilter("ignore", DeprecationWarning)
        state = factories.LinkStateFactory(
            str(database), manager, stores.ObjectStoreFactory(str(database))
        ).state()
    if not _empty:
        with contextlib.closing(sqlite3.connect(database)) as made:
            _empty.append(made.serialize())
    manager.linkstate = state
    node = state.create_node("aid", "name", b"key", 30.0)
    assert state.activate_node(node, 30.0)
    run = state.create_run(
        None, None, None, {}, constants.NOOP_FEDERATION_ID, None, "aid", "serverapp"
    )
    yield Link(state, post, nodes, alive, shelf, run, node)
    for each in (state, state.object_store):
        each._engine.dispose()  # Flower leaves that to the end of its process
