# SPDX-License-Identifier: Apache-2.0
"""Who is whose neighbour, how many shares open a secret, and how many must sign a list.

Up to 33 clients all are neighbours (Bonawitz et al. 2017). Beyond, clients stand on a
ring in an order that they drew together (`draw`), and each has the k/2 next ones on either side
as neighbours (Bell et al. 2020). Its secrets are shared among them and itself: k + 1 holders.
What the numbers here are good for is proved in docs/security.md.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agnosticfl.secagg.primitives import add_mask, derive

PRIVACY = 53  # bits: 2^−40 that a client has too many dishonest neighbours, for 2^13 drawn rings
COMPLETION = 10  # bits: all have enough living neighbours, but with probability 2^−10
LEAST = 32  # neighbours, where there are as many clients
ONE_IN = 20  # one client in so many is reckoned to be dishonest, rounded up


class GraphPlan(NamedTuple):
    """How a cohort of n clients shares its secrets."""

    neighbours: int  # k
    threshold: int  # t, of the k + 1 holders of a secret


def reckoned_dishonest(clients: int, insisted: int) -> int:
    """B: at least one of any three or more, and what is insisted on if that is more."""
    return max(insisted, -(-clients // ONE_IN)) if clients >= 3 else 0


def quorum(clients: int) -> int:
    """So many of a cohort must have signed one list of survivors before anyone unmasks."""
    return 2 * clients // 3 + 1


@functools.cache
def plan(clients: int, dishonest: int, dropout: float) -> GraphPlan:
    """The smallest k, and its t, for `clients` (n) of which `dishonest` (B) are.

    Args:
      dropout: share of the cohort that is not waited for, and half as many are lost after that.
    """
    lost = clients - waited_for(clients, dropout) + math.ceil(dropout * clients / 2)
    for k in range(LEAST, clients - 1, 2):
        threshold = least_threshold(clients, k, dishonest)
        if threshold <= k + 1 - _most_met(clients, lost, k, COMPLETION):
            return GraphPlan(k, threshold)
    return GraphPlan(clients - 1, quorum(clients))


def waited_for(clients: int, dropout: float) -> int:
    """The server waits for no more vectors than so many: what is lost on purpose is lost too."""
    return clients - math.floor(dropout * clients)


@functools.cache
def least_threshold(clients: int, k: int, dishonest: int) -> int:
    """The least t that B dishonest clients cannot get round, with k neighbours each."""
    if k >= clients - 1:
        return quorum(clients)
    near = _most_met(clients, dishonest, k, PRIVACY)  # b
    return max(k // 2 + 2 + near, -(-(2 * (k + 1) + near) // 3))


def tolerates(clients: int, plan: GraphPlan, dishonest: int) -> bool:
    """Whether B dishonest clients learn no more than they should; any client can check it."""
    k, t = plan
    if not min(LEAST, clients - 1) <= k < clients or t > k + 1:
        return False
    one_list = 2 * quorum(clients) > clients + dishonest
    # And of every sum two honest clients are part, so that one is not alone in it.
    if k == clients - 1:
        return t == quorum(clients) and one_list and t >= dishonest + 2
    return k % 2 == 0 and one_list and t >= least_threshold(clients, k, dishonest)


def may_drop(clients: int, plan: GraphPlan) -> int:
    """How many clients a round can lose, wherever they stand on the ring."""
    return min(plan.neighbours + 1 - plan.threshold, clients - quorum(clients))


def _most_met(clients: int, marked: int, k: int, bits: int) -> int:
    """The most of `marked` clients that any client has among k neighbours, but for 2^−bits.

    Counted exactly, in whole numbers, so that all clients get the same: k neighbours are drawn from
    the n − 1 others, and there are n clients for which it may happen.
    """
    others = clients - 1
    marked = min(marked, others)
    most = min(k, marked)
    ways = math.comb(others, k)
    term = math.comb(marked, most) * math.comb(others - marked, k - most)
    limit = 0
    for met in range(most, 0, -1):
        limit += term
        if (clients * limit) << bits > ways:
            return met
        # From the ways to meet so many to the ways to meet one fewer.
        term = term * met * (others - marked - k + met) // ((marked - met + 1) * (k - met + 1))
    return 0


class Graph(NamedTuple):
    """The ring of a round."""

    order: Sequence[int]  # the cohort, around the ring
    place: dict[int, int]  # of each client on the ring
    plan: GraphPlan


def graph(seed: bytes, cohort: Sequence[int], plan: GraphPlan) -> Graph:
    """The ring that follows from what was drawn: the same for all who agree on it."""
    order = shuffled(derive(seed, b"", b"graph"), cohort)
    return Graph(order, {client: i for i, client in enumerate(order)}, plan)


def shuffled(key: bytes, cohort: Sequence[int]) -> list[int]:
    """The cohort in an order that follows from a key."""
    draws = np.zeros(2 * len(cohort), "<u4")
    add_mask(draws, key, +1)
    return [cohort[i] for i in np.argsort(draws.view("<u8"), kind="stable")]


def neighbours(graph: Graph, client: int) -> list[int]:
    """The k neighbours of a client, in rising order."""
    order, k = graph.order, graph.plan.neighbours
    if k >= len(order) - 1:
        return sorted(other for other in order if other != client)
    here = graph.place[client]
    steps = [step for step in range(-(k // 2), k // 2 + 1) if step]
    return sorted(order[(here + step) % len(order)] for step in steps)


def holders_of(client: int, neighbours: Sequence[int]) -> list[int]:
    """Those who hold a client's secrets, itself among them; share j is the j-th's."""
    return sorted([*neighbours, client])
