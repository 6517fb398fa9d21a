# SPDX-License-Identifier: Apache-2.0
"""Client ids, and which split a client falls in: pure functions of (seed, client id)."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeAlias

from agnosticfl.errors import check

LONGEST_ID = 1000  # bytes of UTF-8; a longer client id is a damaged field, not a name

HeldoutFraction: TypeAlias = Annotated[float, "share of the clients in the heldout split"]
TestFraction: TypeAlias = Annotated[float, "share of the clients in the test split"]
Seed: TypeAlias = Annotated[int, "seed of every random choice"]


class Fractions(NamedTuple):
    """The shares of the heldout and the test split; the rest is train."""

    heldout: float
    test: float


def check_client_id(client: str, place: str) -> str:
    """Returns `client` if it can be a client id; `place` says where it was read."""
    check(bool(client), f"{place}: the client id is empty; every example needs an owner")
    size = len(client.encode(errors="surrogatepass"))
    check(
        size <= LONGEST_ID,
        f"{place}: the client id {client[:20]!r}… has {size} bytes;"
        f" at most {LONGEST_ID} are allowed",
    )
    return client


def check_fractions(fractions: Fractions) -> Fractions:
    """Returns `fractions` if both are shares that leave something to train on."""
    fine = 0 <= fractions.heldout < 1 and 0 <= fractions.test < 1 and sum(fractions) < 1
    check(
        fine,
        f"the heldout fraction is {fractions.heldout} and the test fraction {fractions.test};"
        " both must be at least 0 and their sum below 1",
    )
    return fractions


def uniform_hash(seed: int, name: str) -> float:
    """A number in [0, 1) that is a function of (seed, name) alone, in every process."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def split_of(client: str, fractions: Fractions, seed: int) -> str:
    """The split of one client, whichever others there are: for data read as a stream."""
    place = uniform_hash(seed, client)
    if place < fractions.test:
        return "test"
    return "heldout" if place < fractions.test + fractions.heldout else "train"


def stratified_splits(
    stratum_of: Mapping[str, str], fractions: Fractions, seed: int, strict: bool = True
) -> dict[str, str]:
    """Client -> split, with the fractions kept within each stratum and no split left empty.

    Args:
      stratum_of: client -> its stratum (the locale).
      strict: whether a stratum with too few clients for all splits is refused; else it has one in
        train first, then in test, then in heldout.
    """
    members: dict[str, list[str]] = {}
    for client in sorted(stratum_of, key=lambda client: (uniform_hash(seed, client), client)):
        members.setdefault(stratum_of[client], []).append(client)
    splits: dict[str, str] = {}
    for stratum, clients in members.items():
        number = len(clients)
        test, heldout = (
            _strict_shares(stratum, number, fractions)
            if strict
            else lenient_shares(number, fractions)
        )
        names = ["test"] * test + ["heldout"] * heldout
        names += ["train"] * (number - len(names))
        splits.update(zip(clients, names, strict=True))
    return splits


def lenient_shares(number: int, fractions: Fractions) -> tuple[int, int]:
    """How many of `number` are for test and for heldout; one at least is left for train."""
    test = min(_share(fractions.test, number), number - 1)
    return test, min(_share(fractions.heldout, number), number - 1 - test)


def _strict_shares(stratum: str, number: int, fractions: Fractions) -> tuple[int, int]:
    test, heldout = (_share(part, number) for part in (fractions.test, fractions.heldout))
    check(
        test + heldout < number,
        f"{stratum!r} has {number} clients: too few to put {test} in test,"
        f" {heldout} in heldout and one in train",
    )
    return test, heldout


def _share(fraction: float, number: int) -> int:
    return max(1, round(fraction * number)) if fraction > 0 else 0
