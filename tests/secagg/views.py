# SPDX-License-Identifier: Apache-2.0
"""What a server can learn from all that it may show to clients, by trying all of it.

A round without its cryptography. W(u) are the holders of u's secrets, itself among them. An honest
client signs one list of survivors, which holds itself and t of its holders; it answers if t of its
holders and q of all signed the same list, liars counted. Its answer opens the seed of its own mask
and gives one share of each neighbour, of its key if that one is not in the list. Sets of clients
are bits of a number.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple


class Case(NamedTuple):
    """A cohort: who holds whose secrets, who lies, and how many are needed."""

    holders: tuple[int, ...]  # W(u), of each client
    liars: int
    threshold: int  # t
    quorum: int  # q

    @property
    def honest(self) -> list[int]:
        return [u for u in range(len(self.holders)) if not self.liars >> u & 1]


def complete(clients: int, liars: int, threshold: int) -> Case:
    """All are neighbours; who lies does not matter then."""
    everyone = (1 << clients) - 1
    return Case((everyone,) * clients, (1 << liars) - 1, threshold, threshold)


def ring(clients: int, k: int, liars: int, threshold: int, quorum: int) -> Case:
    """Clients in the order of the ring; `liars` as bits."""
    steps = range(-(k // 2), k // 2 + 1)
    holders = tuple(sum(1 << (u + s) % clients for s in steps) for u in range(clients))
    return Case(holders, liars, threshold, quorum)


def answers(case: Case, signed: int) -> int:
    """Who may be made to answer, if so many honest clients signed one list."""
    backed = signed | case.liars
    if backed.bit_count() < case.quorum:
        return 0
    return sum(
        1 << u
        for u in case.honest
        if signed >> u & 1 and (case.holders[u] & backed).bit_count() >= case.threshold
    )


def two_faced(case: Case) -> Iterator[tuple[int, int]]:
    """All ways to have two lists signed for both of which somebody answers."""
    for choice in itertools.product((0, 1, 2), repeat=len(case.honest)):
        one, other = (
            sum(1 << u for u, c in zip(case.honest, choice, strict=True) if c == side)
            for side in (1, 2)
        )
        if one and other and answers(case, one) and answers(case, other):
            yield one, other


class View(NamedTuple):
    """One list, and what was made of it."""

    alive: int  # the list, its honest clients
    signed: int
    answered: int


def one_list(case: Case) -> Iterator[View]:
    """All lists, all who may have signed them, and all who were then asked."""
    for choice in itertools.product(range(4), repeat=len(case.honest)):
        alive, signed, answered = (
            sum(1 << u for u, c in zip(case.honest, choice, strict=True) if c >= least)
            for least in (1, 2, 3)
        )
        if answered and not answered & ~answers(case, signed):
            yield View(alive, signed, answered)


def opened(case: Case, view: View) -> tuple[int, int]:
    """Whose own seed is open, and whose key."""
    own, key = view.answered, 0
    for u in case.honest:
        helpers = (case.holders[u] & (view.answered | case.liars) & ~(1 << u)).bit_count()
        if helpers >= case.threshold:
            own, key = (own | 1 << u, key) if view.alive >> u & 1 else (own, key | 1 << u)
    return own, key


def parts(case: Case, view: View) -> Iterator[int]:
    """The sets whose sums the server can compute: no mask goes out of one but to an open key.

    A client that signed has put on a mask for each neighbour in its list. One that did not was
    shown boxes of t holders at least, of the server's choice: those that suit it best.
    """
    own, key = opened(case, view)
    for part in _subsets(own):
        if part and all(_closed(case, view, part, key, u) for u in case.honest if part >> u & 1):
            yield part


def _closed(case: Case, view: View, part: int, key: int, u: int) -> bool:
    near = case.holders[u] & ~(1 << u) & ~case.liars
    if view.signed >> u & 1:
        return not near & view.alive & ~(part | key)
    liars = (case.holders[u] & case.liars).bit_count()
    return (near & (part | key)).bit_count() + 1 + liars >= case.threshold


def _subsets(whole: int) -> Iterator[int]:
    part = whole
    while part:
        yield part
        part = (part - 1) & whole
