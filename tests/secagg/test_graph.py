# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agnosticfl.secagg.graph import LEAST, GraphPlan, graph, neighbours, plan


@given(
    st.integers(2, 400), st.floats(0, 0.2), st.floats(0, 0.2), st.binary(min_size=32, max_size=32)
)
def test_everyone_has_k_neighbours_and_is_theirs(
    clients: int, dishonest: float, dropout: float, round: bytes
):
    own = plan(clients, dishonest, dropout)
    cohort = [3 * i + 1 for i in range(clients)]
    ring = graph(round, cohort, own)
    near = {client: neighbours(ring, client) for client in cohort}
    assert all(len(set(near[c])) == own.neighbours and c not in near[c] for c in cohort)
    assert all(c in near[other] for c in cohort for other in near[c])
    assert 2 * own.threshold > own.neighbours + 1  # of the holders, the client itself among them
    assert own.threshold <= own.neighbours + 1


def test_the_ring_follows_from_the_round():
    cohort = list(range(100))
    first, again, other = (graph(r * 32, cohort, GraphPlan(32, 20)) for r in (b"a", b"a", b"b"))
    assert first == again
    assert first.order != other.order
    assert sorted(first.order) == cohort


@pytest.mark.parametrize(("clients", "dishonest", "dropout"), [(100, 0.05, 0.1), (1000, 0.02, 0.1)])
def test_thresholds_hold_but_with_the_probability_that_is_said(
    clients: int, dishonest: float, dropout: float
):
    k, t = plan(clients, dishonest, dropout)
    liars, lost = math.floor(dishonest * clients), math.ceil(dropout * clients)
    most = t - k // 2 - 2  # liars among the neighbours that the threshold can bear
    met = stats.hypergeom(clients - 1, liars, k)
    assert clients * met.sf(most) <= 2**-40
    left = stats.hypergeom(clients - 1, lost, k)
    assert clients * left.sf(k + 1 - t) <= 2**-20


def test_neighbours_grow_with_the_logarithm():
    sizes = [10**3, 10**4, 10**5, 10**6]
    k = [plan(n, 0.05, 0.1).neighbours for n in sizes]
    steps = np.diff(k)
    assert all(steps > 0)
    assert all(steps <= 50)  # ten times the clients: a constant more, where √n would be 3 times
    assert plan(30, 0.05, 0.1) == GraphPlan(29, 16)  # all, and more than a half of 30 + 1
    assert plan(LEAST + 1, 0, 0) == GraphPlan(LEAST, 17)
    assert plan(3, 0.05, 0.1) == GraphPlan(2, 2)
