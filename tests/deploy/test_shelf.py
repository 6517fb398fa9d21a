# SPDX-License-Identifier: Apache-2.0
"""Small messages are kept in memory, with all that Flower's store would do with them."""

import importlib
import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from agnosticfl.deploy.flower import shelf as shelves
from agnosticfl.deploy.flower.shelf import Shelf, carrying
from tests.deploy.links import Link, linked

objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
stores: Any = importlib.import_module("flwr.supercore.object_store.sql_object_store")
states: Any = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate")


def test_what_is_used_of_flower_s_inside_is_there():
    store = stores.SqlObjectStore
    for name in ("get_object_tree", "get", "delete", "__contains__"):
        assert list(inspect.signature(getattr(store, name)).parameters) == ["self", "object_id"]
    assert list(inspect.signature(store.delete_objects_in_run).parameters) == ["self", "run_id"]
    # Flower asks its store for nothing else about a message that is there with all its parts.
    assert shelves._stores.SqlObjectStore is store
    for function in (states.SqlLinkState.store_message_res, states.SqlLinkState.store_message_ins):
        assert list(inspect.signature(function).parameters) == ["self", "message"]
    source = inspect.getsource(states.SqlLinkState.store_message_and_object_tree)
    for line in (
        "if message.metadata.reply_to_message_id:",
        "stored = self.store_message_res(message) is not None",
        "stored = self.store_message_ins(message) is not None",
        "missing_objects = self.preregister_object_tree(object_tree, session_id)",
    ):
        assert line in source
    assert "get_object_id(object_content)" in inspect.getsource(store.put)
    assert "validate_object_content(content=object_content)" in inspect.getsource(store.put)


def whole(number: int, shared: int = 0) -> tuple[Any, dict[str, bytes]]:
    """The tree of something in two parts and a root, one of them shared with others, and all."""
    made = RecordDict({"own": ConfigRecord({"n": number}), "all": ConfigRecord({"s": shared})})
    nested = objects.get_all_nested_objects(made)
    return objects.get_object_tree(made), {name: part.deflate() for name, part in nested.items()}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_shared_stays_until_the_last_is_taken():
    shelf = Shelf()
    (one, first), (two, second) = whole(1), whole(2)
    for tree, parts in ((one, first), (two, second), (two, second)):
        shelf.put(7, tree, {**parts, "more": b"of another message"}, 60.0)
    assert len(shelf) == 5
    assert shelf.tree(one.object_id) == one
    assert shelf.parts(two.object_id) == second
    assert {shelf.part(name) for name in first} == set(first.values())
    (common,) = first.keys() & second.keys()
    assert shelf.take(one.object_id)
    assert not shelf.take(one.object_id)
    assert shelf.part(common) == first[common]
    assert shelf.take(two.object_id)
    assert (len(shelf), shelf.part(common), shelf._size, shelf._times.total()) == (0, None, 0, 0)
    assert (shelf.tree(one.object_id), shelf.parts(one.object_id)) == (None, None)


def test_what_nobody_fetches_in_time_is_gone():
    shelf = Shelf(clock := Clock())
    trees = [whole(number) for number in range(3)]
    for seconds, (tree, parts) in zip((10.0, 10.0, 30.0), trees, strict=True):
        shelf.put(7, tree, parts, seconds)
    clock.now += 20.0
    assert shelf.has_room()
    assert [shelf.tree(tree.object_id) is None for tree, _ in trees] == [True, True, False]


def test_there_is_so_much_room_and_no_more(monkeypatch: pytest.MonkeyPatch):
    tree, parts = whole(1)
    monkeypatch.setattr(shelves, "ROOM", sum(map(len, parts.values())))
    shelf = Shelf()
    assert shelf.has_room()
    shelf.put(7, tree, parts, 60.0)
    assert not shelf.has_room()


@pytest.mark.parametrize("content", [b"nonsense", b""])
def test_a_part_that_is_not_its_name_s_is_not_put(content: bytes):
    shelf, (tree, parts) = Shelf(), whole(1)
    with pytest.raises(ValueError, match="does not match its name"):
        shelf.put(7, tree, {**parts, tree.object_id: content}, 60.0)
    assert len(shelf) == 0


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Link]:
    with linked(tmp_path, monkeypatch) as link:
        yield link


def test_flower_s_store_has_what_is_on_the_shelf(link: Link):
    store, (tree, parts) = link.state.object_store, whole(1)
    assert tree.object_id not in store
    link.shelf.put(link.run, tree, parts, 60.0)
    assert tree.object_id in store
    assert store.get_object_tree(tree.object_id) == tree
    assert {name: store.get(name) for name in parts} == parts
    assert link.state.get_object(link.run, tree.object_id) == parts[tree.object_id]
    store.delete(tree.object_id)
    assert (tree.object_id in store, len(store)) == (False, 0)
    with pytest.raises(stores.NoObjectInStoreError):
        store.get_object_tree(tree.object_id)
    link.shelf.put(link.run, tree, parts, 60.0)
    store.delete_objects_in_run(link.run + 1)
    assert tree.object_id in store
    store.delete_objects_in_run(link.run)
    assert len(link.shelf) == 0


def test_a_message_on_the_shelf_is_given_again_until_it_is_confirmed(link: Link):
    """As one in the database is; and after a restart, when the shelf is empty, it is gone."""
    message, tree, parts = link.message()
    with carrying(parts):
        assert link.state.start_session(link.run) == ""
        assert link.state.store_message_and_object_tree(message, tree, "") == (True, [])
    assert link.post.here(link.node) == {tree.object_id}
    assert link.look() == link.look() == [tree.object_id]
    link.confirm(tree.object_id)
    assert link.look() == []
    with carrying(parts):
        link.state.store_message_and_object_tree(message, tree, "")
    link.shelf.take_all(link.run)
    assert link.look() == []
