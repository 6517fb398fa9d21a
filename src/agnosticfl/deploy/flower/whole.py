# SPDX-License-Identifier: Apache-2.0
"""Messages that travel whole: in one request with their parts.

Flower sends the head of a message, and each of its parts by a request of its own: some ten
requests for a message and as many for its reply, which is nearly all that a SuperLink does. Here
parts come with the head, in a field of Flower's own requests and answers that its code does not
know and passes by. Parts that have no room go as Flower sends them, and so do those of who does
not know that field: an unmodified SuperNode asks for no parts, an unmodified SuperLink gives none.

Here is what a client and the run do; the SuperLink's part is `handing`.

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_whole.py` fails if it changes.
"""

import contextlib
import importlib
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

ROOM = 2**20  # bytes of parts that come with a head
AT_ONCE = 16  # messages in one request of the run's
PARTS, WANTED = 15001, 15002  # numbers of fields, far from Flower's own
BYTES = 2  # the kind of both, as protobuf numbers kinds

_messages: Any = importlib.import_module("flwr.proto.message_pb2")
_objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")

_leaving: ContextVar[Sequence[Message]] = ContextVar("messages that are being sent", default=())


def enclose(head: Any, parts: Mapping[str, bytes]) -> None:
    """Puts parts, by their names, into a request or an answer."""
    for name, content in parts.items():
        part = _messages.PushObjectRequest(object_id=name, object_content=content)
        head.MergeFromString(_field(PARTS, part.SerializeToString()))


def enclosed(head: Any) -> dict[str, bytes]:
    """The parts that came with a request or an answer."""
    found = dict[str, bytes]()
    for content in _fields(head, PARTS):
        with contextlib.suppress(DecodeError):
            part = _messages.PushObjectRequest.FromString(content)
            found[part.object_id] = part.object_content
    return found


def want(head: Any) -> None:
    """Says in a request for messages that their parts may come with them."""
    if not wanted(head):
        head.MergeFromString(_field(WANTED, b""))


def wanted(head: Any) -> bool:
    return bool(_fields(head, WANTED))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low = number & 127
    return bytes([low | 128]) + _varint(number >> 7) if number > 127 else bytes([low])


def _fields(head: Any, number: int) -> list[bytes]:
    fields = UnknownFieldSet(head)
    return [f.data for f in fields if (f.field_number, f.wire_type) == (number, BYTES)]


def names_in(tree: Any) -> set[str]:
    """All parts of a message."""
    return {part.object_id for part in _objects.iterate_object_tree(tree)}


def fitting(contents: Iterable[tuple[str, bytes]], room: int = ROOM) -> dict[str, bytes]:
    """Those parts for which there is room, in their order."""
    found = dict[str, bytes]()
    for name, content in contents:
        if len(content) <= room:
            found[name] = content
            room -= len(content)
    return found


@contextlib.contextmanager
def sending(messages: Sequence[Message]) -> Generator[None]:
    """Messages that are sent in this block take their parts with them."""
    token = _leaving.set(messages)
    try:
        yield
    finally:
        _leaving.reset(token)


class Whole:
    """What a client of Flower's HTTP interface does in place of single requests for parts."""

    _parts: Mapping[str, bytes] = {}  # that came with the last messages
    whole: Collection[str] = ()  # those of these messages that came with all their parts

    def PushMessages(self, request: Any) -> Any:  # noqa: N802, as Flower has it
        nested = (_objects.get_all_nested_objects(message) for message in _leaving.get())
        parts = {name: part for each in nested for name, part in each.items()}
        enclose(request, fitting((name, part.deflate()) for name, part in parts.items()))
        return super().PushMessages(request)  # type: ignore[misc]

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        want(request)
        found = super().PullMessages(request)  # type: ignore[misc]
        self._parts = enclosed(found)
        trees = found.message_object_trees
        self.whole = {tree.object_id for tree in trees if names_in(tree) <= self._parts.keys()}
        return found

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self._parts.get(request.object_id)
        if content is None:
            return super().PullObject(request)  # type: ignore[misc]
        return _messages.PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        )


def push_some(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Sends messages, some at once, so that the first are read while the last are written."""
    numbers = list[str]()
    for first in range(0, len(messages), AT_ONCE):
        some = messages[first : first + AT_ONCE]
        with sending(some):
            numbers += grid.push_messages(some)
    return numbers
