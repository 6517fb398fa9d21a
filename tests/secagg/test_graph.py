# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agnosticfl.secagg.graph import (
    LEAST,
    GraphPlan,
    graph,
    least_threshold,
    may_drop,
    neighbours,
    plan,
    quorum,
    reckoned_dishonest,
    tolerates,
    waited_for,
)


@given(
    st.integers(3, 400),
    st.integers(0, 20),
    st.floats(0, 0.2),
    st.binary(min_size=32, max_size=32),
)
def test_everyone_has_k_neighbours_and_is_theirs(
    clients: int, insisted: int, dropout: float, ring: bytes
):
    own = plan(clients, reckoned_dishonest(clients, insisted), dropout)
    cohort = [3 * i + 1 for i in range(clients)]
    drawn = graph(ring, cohort, own)
    near = {client: neighbours(drawn, client) for client in cohort}
    assert all(len(set(near[c])) == own.neighbours and c not in near[c] for c in cohort)
    assert all(c in near[other] for c in cohort for other in near[c])
    assert 2 * (own.neighbours + 1) < 3 * own.threshold + 3
    assert own.threshold <= own.neighbours + 1


def test_the_ring_follows_from_what_was_drawn():
    cohort = list(range(100))
    first, again, other = (graph(r * 32, cohort, GraphPlan(32, 20)) for r in (b"a", b"a", b"b"))
    assert first == again
    assert first.order != other.order
    assert sorted(first.order) == cohort


@pytest.mark.parametrize("clients", range(3, LEAST + 2))
def test_up_to_33_clients_more_than_two_thirds_open_a_secret(clients: int):
    own = plan(clients, 1, 0.1)
    assert own == GraphPlan(clients - 1, 2 * clients // 3 + 1)
    assert may_drop(clients, own) == clients - own.threshold


def test_of_three_none_may_drop_and_of_five_one():
    assert [may_drop(n, plan(n, 1, 0.1)) for n in (3, 4, 5, 6, 7)] == [0, 1, 1, 1, 2]


def test_dishonest_clients_are_rounded_up():
    found = [reckoned_dishonest(n, 0) for n in (2, 3, 19, 20, 21, 100, 101)]
    assert found == [0, 1, 1, 1, 2, 5, 6]
    assert reckoned_dishonest(100, 9) == 9
    assert reckoned_dishonest(1000, 9) == 50


@pytest.mark.parametrize(("clients", "most"), [(3, 1), (4, 1), (5, 2), (6, 3), (10, 3), (33, 12)])
def test_more_dishonest_clients_than_a_third_are_not_tolerated(clients: int, most: int):
    own = plan(clients, 1, 0.1)
    assert tolerates(clients, own, most)
    assert not tolerates(clients, own, most + 1)


@pytest.mark.parametrize("clients", [36, 77, 100, 1000, 10**4])
@pytest.mark.parametrize("insisted", [1, 7])
def test_thresholds_on_the_ring(clients: int, insisted: int):
    """Both bounds with the most dishonest neighbours b, and how rarely there are more."""
    dishonest = reckoned_dishonest(clients, insisted)
    k, t = plan(clients, dishonest, 0.1)
    assert k < clients - 1
    met = stats.hypergeom(clients - 1, dishonest, k)
    b = next(b for b in range(k) if clients * met.sf(b) <= 2**-53)
    assert t >= k / 2 + 2 + b
    assert t >= (2 * (k + 1) + b) / 3
    assert t == least_threshold(clients, k, dishonest)
    assert tolerates(clients, GraphPlan(k, t), dishonest)
    assert not tolerates(clients, GraphPlan(k, t - 1), dishonest)
    assert not tolerates(clients, GraphPlan(k + 1, t), dishonest)
    lost = clients - waited_for(clients, 0.1) + -(-clients // 20)
    left = stats.hypergeom(clients - 1, lost, k)
    assert clients * left.sf(k + 1 - t) <= 2**-10


def test_a_ring_of_too_few_neighbours_is_not_tolerated():
    assert not tolerates(100, GraphPlan(LEAST - 2, LEAST - 1), 1)
    assert not tolerates(100, GraphPlan(100, 67), 1)
    assert not tolerates(33, GraphPlan(30, 31), 1)


@pytest.mark.parametrize("clients", [3, 10, 34, 1000])
def test_no_two_lists_have_a_quorum(clients: int):
    assert 2 * quorum(clients) > clients + reckoned_dishonest(clients, 0)
    assert 2 * quorum(clients) > clients + clients // 3


def test_neighbours_grow_with_the_logarithm():
    sizes = [10**3, 10**4, 10**5, 10**6]
    k = [plan(n, reckoned_dishonest(n, 1), 0.1).neighbours for n in sizes]
    steps = np.diff(k)
    assert all(steps > 0)
    assert all(steps <= 100)  # ten times the clients: a constant more, where √n would be 3 times
