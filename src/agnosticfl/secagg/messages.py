# SPDX-License-Identifier: Apache-2.0
"""The messages of a secure round, as bytes: a versioned msgpack list, read strictly.

Whatever the bytes are, `parse` gives a message whose every field has the right type, length and
range, or raises `Refused`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgpack

from agnosticfl.secagg.primitives import KEY, NONCE, SEED, SIGNATURE, TAG

VERSION = 2
BOX = NONCE + 2 * SEED + TAG  # two shares in a box
MOST_CLIENTS = 2**20
MOST_NUMBERS = 2**30  # of a vector

Message = TypeVar("Message", bound=tuple)
Field: TypeAlias = Callable[[Any], Any]  # a value as msgpack gives it -> the field


class Refused(Exception):
    """What was asked or sent is against the protocol; the one line says how."""


class Draw(NamedTuple):
    """Server to clients, first where they stand on a ring: asks for a part in its order."""

    run: bytes
    number: int  # of the round


class Drawn(NamedTuple):
    """Client to all: a commitment to the number that it will add to the draw."""

    round: bytes  # digest of the `Draw`
    sender: int
    commitment: bytes


class Setup(NamedTuple):
    """Server to clients: what the round is. Its digest names the round from here on."""

    run: bytes
    number: int  # of the round; never used twice in a run
    t: int  # round of the algorithm, of which a client opens one sum only
    roster: bytes  # digest of the registered keys
    cohort: Sequence[int]  # places in the roster
    neighbours: int  # k
    threshold: int  # t
    length: int  # numbers of the vector
    short: int = 0  # so many of them, the first, are modulo 2^bits (see `rings`)
    bits: int = 32
    sent: bytes = b""  # digest of what all clients are given to work on
    draws: Mapping[int, bytes] = {}  # on a ring: all clients' commitments


class Keys(NamedTuple):
    """Client to its neighbours: two public keys for this round, signed."""

    round: bytes
    sender: int
    box_key: bytes  # for the boxes with shares
    mask_key: bytes  # for the masks that pairs of neighbours share
    commitment: bytes  # to the seed of its own mask
    draw: bytes  # on a ring: what it committed to before
    signature: bytes


class Peers(NamedTuple):
    """Server to client: the keys of its neighbours."""

    round: bytes
    keys: Sequence[bytes]  # of each, its `Keys`
    drawn: Sequence[bytes] = ()  # the `Keys` of those whose numbers make the ring


class Shares(NamedTuple):
    """Client to its neighbours: for each a box with a share of both its secrets."""

    round: bytes
    sender: int
    boxes: Mapping[int, bytes]  # by receiver


class Boxes(NamedTuple):
    """Server to client: the boxes that its neighbours made for it."""

    round: bytes
    boxes: Mapping[int, bytes]  # by sender


class Masked(NamedTuple):
    """Client to server: its vector, masked."""

    round: bytes
    sender: int
    vector: bytes  # as `rings` writes it


class Survivors(NamedTuple):
    """Server to clients: whose masked vectors it has."""

    round: bytes
    alive: Sequence[int]


class Confirmed(NamedTuple):
    """Client to its neighbours: the list of survivors that it was shown, signed."""

    round: bytes
    sender: int
    signature: bytes


class Unmask(NamedTuple):
    """Server to client: of which neighbours it wants which share."""

    round: bytes
    alive: Sequence[int]  # the seed of the own mask
    dead: Sequence[int]  # the seed of the key of the pairs' masks
    signatures: Mapping[int, bytes]  # under the list of survivors, by client


class Over(NamedTuple):
    """Server to client: the round is abandoned; the client says the same when it has forgotten."""

    number: int  # of the round


class Revealed(NamedTuple):
    """Client to server: the seed of its own mask, and the shares that were asked for."""

    round: bytes
    sender: int
    own_seed: bytes
    alive: Mapping[int, bytes]
    dead: Mapping[int, bytes]


def pack(message: tuple[Any, ...]) -> bytes:
    """A message as bytes."""
    fields = [sorted(f.items()) if isinstance(f, Mapping) else f for f in message]
    return cast("bytes", msgpack.packb([VERSION, type(message).__name__, *fields]))


def parse(data: bytes, kind: type[Message]) -> Message:
    """The message of that kind in `data`; refuses everything else."""
    name = kind.__name__
    values = _unpacked(data)
    _need(len(values) >= 2, "it is too short to be a message")
    version, other, *fields = values
    _need(version == VERSION, f"its version is {_short(version)}, not {VERSION}")
    _need(other == name, f"it is {_short(other)}, where {name} was expected")
    _need(len(fields) == len(READERS[name]), f"{name} has {len(fields)} fields")
    read: list[Any] = []
    for field, reader, value in zip(kind._fields, READERS[name], fields, strict=True):  # type: ignore[attr-defined]
        try:
            read.append(reader(value))
        except Refused as error:
            raise Refused(f"bad message: {name}.{field} {error}") from None
    return kind(*read)


def kind_of(data: bytes) -> str:
    """The name of the kind that a message claims to be of."""
    values = _unpacked(data)
    return str(values[1])[:20] if len(values) >= 2 else "nothing"


def _unpacked(data: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(data, raw=False, use_list=True)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Refused("bad message: it is not msgpack") from None
    _need(type(values) is list, "it is not a list")
    return values


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise Refused(f"bad message: {problem}")


def _short(value: Any) -> str:
    return repr(value)[:20]


def _number(least: int, most: int) -> Field:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Refused(f"is not a whole number from {least} to {most}")
        return value

    return read


def _bytes(least: int, most: int) -> Field:
    def read(value: Any) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= most:
            raise Refused(f"is not {least} to {most} bytes")
        return value

    return read


def _list_of(item: Field) -> Field:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MOST_CLIENTS:
            raise Refused("is not a list")
        return tuple(item(entry) for entry in value)

    return read


def _places(value: Any) -> tuple[int, ...]:
    places = _list_of(_client)(value)
    if any(a >= b for a, b in itertools.pairwise(places)):
        raise Refused("is not in rising order")
    return places


def _by_client(item: Field) -> Field:
    def pair(value: Any) -> tuple[int, Any]:
        if type(value) is not list or len(value) != 2:
            raise Refused("has an entry that is not a pair")
        return _client(value[0]), item(value[1])

    def read(value: Any) -> dict[int, Any]:
        pairs = _list_of(pair)(value)
        _places([client for client, _ in pairs])
        return dict(pairs)

    return read


def _exactly(size: int) -> Field:
    return _bytes(size, size)


_client = _number(0, MOST_CLIENTS - 1)
_round = _exactly(KEY)

READERS: dict[str, tuple[Field, ...]] = {
    "Draw": (_bytes(1, 64), _number(1, 2**63 - 1)),
    "Drawn": (_round, _client, _exactly(KEY)),
    "Over": (_number(1, 2**63 - 1),),
    "Setup": (
        _bytes(1, 64),
        _number(1, 2**63 - 1),
        _number(1, 2**63 - 1),
        _exactly(KEY),
        _places,
        _number(1, MOST_CLIENTS),
        _number(1, MOST_CLIENTS),
        _number(1, MOST_NUMBERS),
        _number(0, MOST_NUMBERS),
        _number(1, 32),
        _bytes(0, KEY),
        _by_client(_exactly(KEY)),
    ),
    "Keys": (
        _round,
        _client,
        _exactly(KEY),
        _exactly(KEY),
        _exactly(KEY),
        _bytes(0, KEY),
        _exactly(SIGNATURE),
    ),
    "Peers": (_round, _list_of(_bytes(0, 1000)), _list_of(_bytes(0, 1000))),
    "Shares": (_round, _client, _by_client(_exactly(BOX))),
    "Boxes": (_round, _by_client(_exactly(BOX))),
    "Masked": (_round, _client, _bytes(1, 4 * MOST_NUMBERS)),
    "Survivors": (_round, _places),
    "Confirmed": (_round, _client, _exactly(SIGNATURE)),
    "Unmask": (_round, _places, _places, _by_client(_exactly(SIGNATURE))),
    "Revealed": (
        _round,
        _client,
        _exactly(SEED),
        _by_client(_exactly(SEED)),
        _by_client(_exactly(SEED)),
    ),
}
