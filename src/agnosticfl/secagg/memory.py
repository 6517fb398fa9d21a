# SPDX-License-Identifier: Apache-2.0
"""What a client remembers between two messages, and what it must never forget.

It can be in two rounds of a run: one whose sum is being opened, and the next, which is being
prepared; and in rounds of other runs between them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgpack

from agnosticfl.errors import check
from agnosticfl.secagg.primitives import KEY, digest

MOST_ROUNDS = 4


class Part(NamedTuple):
    """A client's part in one round, with its secrets."""

    run: bytes
    number: int  # of the round
    waiting_for: str  # kind of the next request
    draw: bytes = b""  # its number for the ring
    setup: bytes = b""
    box_private: bytes = b""
    mask_seed: bytes = b""  # of the private key of the pairs' masks
    own_seed: bytes = b""  # of its own mask
    ring: bytes = b""  # the seed of the ring
    peers: Mapping[int, tuple[bytes, bytes]] = {}  # client -> its box key and mask key
    shares: Mapping[int, bytes] = {}  # client -> shares of its own seed and of its mask seed
    sum: bytes = b""  # what it was asked for
    weighty: Sequence[str] = ()  # the domains that have weight in it
    survivors: Sequence[int] = ()


class State(NamedTuple):
    """All that a client remembers."""

    number: int = 0  # of the last round that it joined
    opened: Mapping[bytes, int] = {}  # run -> the last t whose sum it helped to open
    rounds: Sequence[Part] = ()  # those that it is in, in rising order


IDLE = State()


def joined(state: State, run: bytes, number: int, draw: bytes) -> State:
    """In a further round; of more than can be on at a time the oldest is forgotten."""
    rounds = (*state.rounds, Part(run, number, "Setup", draw))[-MOST_ROUNDS:]
    return state._replace(number=number, rounds=rounds)


def changed(state: State, part: Part) -> State:
    """With a part as it is now."""
    rounds = tuple(part if old.number == part.number else old for old in state.rounds)
    return state._replace(rounds=rounds)


def without(state: State, number: int) -> State:
    """With nothing left of a round that is over or given up: only that it was."""
    return state._replace(rounds=tuple(part for part in state.rounds if part.number != number))


def without_older(state: State, part: Part) -> State:
    """With nothing left of the run's rounds before: a vector is masked in one at a time."""
    left = (p for p in state.rounds if p.run != part.run or p.number >= part.number)
    return state._replace(rounds=tuple(left))


def dump(state: State) -> bytes:
    """A state as bytes, with its secrets: they must not leave the client."""
    parts = [[_listed(field) for field in part] for part in state.rounds]
    content = cast("bytes", msgpack.packb([state.number, _listed(state.opened), parts]))
    return _seal(content) + content


def load(data: bytes) -> State:
    """The inverse of `dump`; a state with but one bit changed is none, and `BadInput`."""
    content = data[KEY:]
    check(data[:KEY] == _seal(content), "is damaged, or of another version of this program")
    number, opened, parts = msgpack.unpackb(content, use_list=False)
    rounds = [Part(*fields) for fields in parts]
    restored = (p._replace(peers=dict(p.peers), shares=dict(p.shares)) for p in rounds)
    return State(number, dict(opened), tuple(restored))


def _listed(field: object) -> object:
    return list(field.items()) if isinstance(field, Mapping) else field  # type: ignore[return-value]


def _seal(content: bytes) -> bytes:
    fields = repr((State._fields, Part._fields)).encode()
    return digest(b"memory", fields, content)
