# SPDX-License-Identifier: Apache-2.0
"""Who of a round's clients can still open whose secrets: what decides whether a round goes on."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple


class Holders(NamedTuple):
    """Whom the secrets of each client are shared with, and how many of them open one."""

    neighbours: Mapping[int, Sequence[int]]
    threshold: int  # t, of the neighbours and the client itself


def peers(holders: Holders, client: int, among: Collection[int]) -> list[int]:
    """The neighbours of a client that are among some clients."""
    return [n for n in holders.neighbours[client] if n in among]


def held(holders: Holders, client: int, among: Collection[int]) -> int:
    """How many of those who hold a client's secrets, itself among them, are left."""
    return len(peers(holders, client, among)) + (client in among)


def connected(holders: Holders, clients: Iterable[int]) -> set[int]:
    """Those of `clients` with enough holders among them."""
    left = set(clients)
    while lonely := [c for c in left if held(holders, c, left) < holders.threshold]:
        left -= set(lonely)
    return left


def lost(holders: Holders, shared: Collection[int], alive: Collection[int]) -> list[int]:
    """Those whose masks are on the vectors of survivors, but who sent none themselves."""
    return [c for c in sorted(set(shared) - set(alive)) if peers(holders, c, alive)]


def beyond_reach(
    holders: Holders, needed: Iterable[int], clients: Collection[int]
) -> tuple[int, int] | None:
    """A client whose secrets are needed, and the too few of `clients` that hold them, if any."""
    for client in needed:
        number = held(holders, client, clients)
        if number < holders.threshold:
            return client, number
    return None
