# SPDX-License-Identifier: Apache-2.0
"""The messages of a secure round, as bytes: a versioned msgpack list, read strictly.

Whatever the bytes are, `parse` gives a message whose every field has the right type, length and
range, or raises `Refused`. It looks at no more bytes than a message of that kind can have, so it
never takes much more memory than that.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgpack

from agnosticfl.secagg.primitives import KEY, NONCE, SEED, SIGNATURE, TAG

VERSION = 4
BOX = NONCE + 2 * SEED + TAG  # two shares in a box
MOST_CLIENTS = 2**20
MOST_NUMBERS = 2**30  # of a vector
MOST_FIELDS = 32
BESIDE = 2000  # bytes of a message beside its vector and what it says of each client
HEAD = 64  # bytes in which a message has said what it is

Message = TypeVar("Message", bound=tuple)
Field: TypeAlias = Callable[[Any], Any]  # a value as msgpack gives it -> the field


class Refused(Exception):
    """What was asked or sent is against the protocol; the one line says how."""


class Join(NamedTuple):
    """Server to clients: asks who takes part in a round, and says what it believes is agreed on."""

    run: bytes
    number: int  # of the round: milliseconds since 1970; never used twice
    agreed: bytes  # digest of the agreement
    terms: Sequence[tuple[str, str]]  # what all must have the same, by name
    signature: bytes  # of the server


class Joined(NamedTuple):
    """Client to all: it takes part, by this key of the roster."""

    round: bytes  # digest of the `Join`
    sender: int
    commitment: bytes  # to the number that it will add to the draw of a ring
    signature: bytes


class Setup(NamedTuple):
    """Server to clients: who is in the round. Its digest names the round from here on."""

    run: bytes
    number: int  # of the round
    agreed: bytes  # digest of the agreement
    cohort: Sequence[int]  # places in the roster
    neighbours: int  # k
    threshold: int  # t
    draws: Mapping[int, bytes] = {}  # on a ring: all clients' commitments
    signature: bytes = b""  # of the server, under the digest of all the rest


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


class Sum(NamedTuple):
    """Server to clients: what is to be summed. Its digest names the sum, and what is said of it."""

    round: bytes  # in which it is opened: a round opens one
    t: int  # round of the algorithm, of which a client opens one sum only
    length: int  # numbers of the vector
    short: int = 0  # so many of them, the first, are modulo 2^bits (see `rings`)
    bits: int = 32
    sent: bytes = b""  # digest of what all clients are given to work on
    signature: bytes = b""  # of the server


class Boxes(NamedTuple):
    """Server to client: the boxes that its neighbours made for it, and what is asked of it."""

    round: bytes
    boxes: Mapping[int, bytes]  # by sender
    sum: bytes  # the `Sum`


class Masked(NamedTuple):
    """Client to server: its vector, masked."""

    sum: bytes  # its name
    sender: int
    vector: bytes  # as `rings` writes it


class Complaint(NamedTuple):
    """Client to server, instead of its vector: whose boxes do not open. It leaves the round."""

    sum: bytes
    sender: int
    accused: Sequence[int]


class Survivors(NamedTuple):
    """Server to clients: whose masked vectors it has."""

    sum: bytes
    alive: Sequence[int]


class Confirmed(NamedTuple):
    """Client to its neighbours: the list of survivors that it was shown, signed."""

    sum: bytes
    sender: int
    signature: bytes


class Unmask(NamedTuple):
    """Server to client: of which neighbours it wants which share."""

    sum: bytes
    alive: Sequence[int]  # the seed of the own mask
    dead: Sequence[int]  # the seed of the key of the pairs' masks
    signatures: Mapping[int, bytes]  # under the list of survivors, by client


class Over(NamedTuple):
    """Server to client: the round is abandoned; the client says the same when it has forgotten."""

    number: int  # of the round


class Revealed(NamedTuple):
    """Client to server: the seed of its own mask, and the shares that were asked for."""

    sum: bytes
    sender: int
    own_seed: bytes
    alive: Mapping[int, bytes]
    dead: Mapping[int, bytes]


def pack(message: tuple[Any, ...]) -> bytes:
    """A message as bytes."""
    fields = [sorted(f.items()) if isinstance(f, Mapping) else f for f in message]
    return cast("bytes", msgpack.packb([VERSION, type(message).__name__, *fields]))


def parse(
    data: bytes,
    kind: type[Message],
    clients: int = MOST_CLIENTS,
    vector: int = 4 * MOST_NUMBERS,
) -> Message:
    """The message of that kind in `data`; refuses everything else.

    Args:
      clients: the most that it can speak of.
      vector: bytes of the vector in it, if it is a kind that has one.
    """
    name = kind.__name__
    form = FORMS[name]
    most = BESIDE + form.per_client * clients + (vector if name == "Masked" else 0)
    _need(len(data) <= most, f"{len(data)} bytes, where {name} has at most {most}")
    values = _unpacked(data, clients)
    _need(len(values) >= 2, "it is too short to be a message")
    version, other, *fields = values
    _need(version == VERSION, f"its version is {_short(version)}, not {VERSION}")
    _need(other == name, f"it is {_short(other)}, where {name} was expected")
    _need(len(fields) == len(form.readers), f"{name} has {len(fields)} fields")
    read: list[Any] = []
    for field, reader, value in zip(kind._fields, form.readers, fields, strict=True):  # type: ignore[attr-defined]
        try:
            read.append(reader(value))
        except Refused as error:
            raise Refused(f"bad message: {name}.{field} {error}") from None
    return kind(*read)


def kind_of(data: bytes) -> str:
    """The name of the kind that a message claims to be of; only its beginning is looked at."""
    unpacker = msgpack.Unpacker(max_array_len=0, max_map_len=0, max_ext_len=0)
    unpacker.feed(data[:HEAD])
    try:
        length = unpacker.read_array_header()
        version, name = (unpacker.unpack(), unpacker.unpack()) if length >= 2 else (0, "nothing")
    except (ValueError, msgpack.UnpackException):
        raise Refused("bad message: it does not begin as one") from None
    _need(version == VERSION, f"its version is {_short(version)}, not {VERSION}")
    return _short(name)


def _unpacked(data: bytes, clients: int) -> list[Any]:
    try:
        values = msgpack.unpackb(
            data,
            max_array_len=max(clients, MOST_FIELDS),
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Refused("bad message: it is not msgpack as it is used here") from None
    _need(type(values) is list, "it is not a list")
    return values


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise Refused(f"bad message: {problem}")


def _short(value: Any) -> str:
    """Of what may be anything, lists in lists in lists, too."""
    return str(value)[:20] if type(value) in (int, str) else f"a {type(value).__name__}"


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


def _word(value: Any) -> str:
    if type(value) is not str or len(value) > 100 or not value.isprintable():
        raise Refused("is not a word of up to 100 letters")
    return value


def _term(value: Any) -> tuple[str, str]:
    if type(value) is not list or len(value) != 2:
        raise Refused("has an entry that is not a pair")
    return _word(value[0]), _word(value[1])


class Form(NamedTuple):
    """How a kind of message is read."""

    readers: tuple[Field, ...]  # of its fields, in their order
    per_client: int = 0  # bytes that it may have for each client


_client = _number(0, MOST_CLIENTS - 1)
_round = _sum = _digest = _exactly(KEY)
_run = _bytes(1, 64)
_counter = _number(1, 2**63 - 1)
_signature = _exactly(SIGNATURE)

FORMS: dict[str, Form] = {
    "Join": Form((_run, _counter, _digest, _list_of(_term), _signature)),
    "Joined": Form((_round, _client, _digest, _signature)),
    "Over": Form((_counter,)),
    "Setup": Form(
        (
            _run,
            _counter,
            _digest,
            _places,
            _number(1, MOST_CLIENTS),
            _number(1, MOST_CLIENTS),
            _by_client(_digest),
            _signature,
        ),
        per_client=50,
    ),
    "Keys": Form((_round, _client, _digest, _digest, _digest, _bytes(0, KEY), _signature)),
    "Peers": Form((_round, _list_of(_bytes(0, 300)), _list_of(_bytes(0, 300))), per_client=610),
    "Shares": Form((_round, _client, _by_client(_exactly(BOX))), per_client=BOX + 10),
    "Boxes": Form((_round, _by_client(_exactly(BOX)), _bytes(0, 300)), per_client=BOX + 10),
    "Sum": Form(
        (
            _round,
            _counter,
            _number(1, MOST_NUMBERS),
            _number(0, MOST_NUMBERS),
            _number(1, 32),
            _bytes(0, KEY),
            _signature,
        )
    ),
    "Masked": Form((_sum, _client, _bytes(1, 4 * MOST_NUMBERS))),
    "Complaint": Form((_sum, _client, _places), per_client=5),
    "Survivors": Form((_sum, _places), per_client=5),
    "Confirmed": Form((_sum, _client, _signature)),
    "Unmask": Form((_sum, _places, _places, _by_client(_signature)), per_client=90),
    "Revealed": Form(
        (
            _sum,
            _client,
            _exactly(SEED),
            _by_client(_exactly(SEED)),
            _by_client(_exactly(SEED)),
        ),
        per_client=2 * (SEED + 10),
    ),
}
