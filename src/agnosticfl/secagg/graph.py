# SPDX-License-Identifier: Apache-2.0
"""Who is whose neighbour, and how many shares open a secret.

Up to 33 clients all are neighbours (Bonawitz et al. 2017). Beyond, clients stand on a
ring in an order that follows from the round's digest, and each has the k/2 next ones on either side
as neighbours (Bell et al. 2020). Its secrets are shared among them and itself: k + 1 holders.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agnosticfl.secagg.primitives import add_mask, derive

PRIVACY = 40  # bits: no client has too many dishonest neighbours, but with probability 2^−40
COMPLETION = 20  # bits: all have enough living ones, but with probability 2^−20
LEAST = 32  # neighbours, where there are as many clients


class GraphPlan(NamedTuple):
    """How a cohort of n clients shares its secrets."""

    neighbours: int  # k
    threshold: int  # t, of the k + 1 holders of a secret


@functools.cache
def plan(clients: int, dishonest: float, dropout: float) -> GraphPlan:
    """The smallest k, and its t, for `clients` (n) of which given shares lie or drop out.

    With at most b dishonest ones among any client's k neighbours, t ≥ k/2 + 2 + b makes sure of
    three things, whatever the server does. No client has both t holders who think it survived and
    t who think it was lost. Neighbours on the ring who answer were shown the same survivors, so
    all were. And the survivors hang together: one at the edge of a gap of k/2 could not be
    unmasked, so the only sum that ever opens is that of all of them.

    With all as neighbours, t > (n + b)/2 does the same, for b dishonest clients.
    """
    liars, lost = math.floor(dishonest * clients), math.ceil(dropout * clients)
    for k in range(LEAST, clients - 1, 2):
        most = _most_met(clients, liars, k, PRIVACY)
        threshold = k // 2 + 2 + most
        if threshold <= k + 1 - _most_met(clients, lost, k, COMPLETION):
            return GraphPlan(k, threshold)
    return GraphPlan(clients - 1, (clients + liars) // 2 + 1)


def _most_met(clients: int, marked: int, k: int, bits: int) -> int:
    """The most of `marked` clients that any client has among k neighbours, but for 2^−bits.

    Counted exactly, in whole numbers, so that all clients get the same: k neighbours are drawn from
    the n − 1 others, and there are n clients for which it may happen.
    """
    others = clients - 1
    ways, limit = math.comb(others, k), 0
    for met in range(min(k, marked), 0, -1):
        limit += math.comb(marked, met) * math.comb(others - marked, k - met)
        if (clients * limit) << bits > ways:
            return met
    return 0


class Graph(NamedTuple):
    """The ring of a round."""

    order: Sequence[int]  # the cohort, around the ring
    place: dict[int, int]  # of each client on the ring
    plan: GraphPlan


def graph(round: bytes, cohort: Sequence[int], plan: GraphPlan) -> Graph:
    """The ring that follows from the round's digest: the same for all who agree on the round."""
    order = _shuffled(derive(round, b"", b"graph"), cohort)
    return Graph(order, {client: i for i, client in enumerate(order)}, plan)


def _shuffled(key: bytes, cohort: Sequence[int]) -> list[int]:
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
