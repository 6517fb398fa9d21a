# SPDX-License-Identifier: Apache-2.0
"""The proof in docs/security.md, step by step, by trying all that a server can show to clients."""

import itertools

import pytest

from agnosticfl.secagg.graph import plan, quorum
from tests.secagg.views import Case, complete, one_list, opened, parts, ring, two_faced

# All are neighbours: every number of dishonest clients that is tolerated.
COMPLETE = [(3, 1), (4, 1), (5, 1), (5, 2), (6, 1), (6, 2), (6, 3), (7, 1), (7, 2), (8, 2), (9, 3)]
# Clients, k, how many lie next to each other: small rings with the bounds of large ones.
RINGS = [(6, 4, 0), (7, 4, 0), (7, 4, 1), (8, 4, 0), (8, 4, 1), (8, 6, 1), (9, 6, 2)]


def small_ring(clients: int, k: int, liars: int) -> Case:
    """With t as `least_threshold` has it, for b = all that lie."""
    threshold = max(k // 2 + 2 + liars, -(-(2 * (k + 1) + liars) // 3))
    return ring(clients, k, (1 << liars) - 1, threshold, quorum(clients))


def cases() -> list[Case]:
    own = [complete(n, liars, plan(n, 1, 0.1).threshold) for n, liars in COMPLETE]
    return own + [small_ring(*values) for values in RINGS]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_step_1_no_two_lists_are_answered(case: Case):
    assert not list(itertools.islice(two_faced(case), 1))


@pytest.mark.parametrize("case", [c for c in cases() if len(c.honest) <= 7], ids=str)
def test_steps_2_and_3_one_secret_of_each_and_one_sum_of_all(case: Case):
    """Of no client both secrets, and no sum over a part of those that are opened."""
    seen = 0
    for view in one_list(case):
        own, key = opened(case, view)
        assert not own & key
        for part in parts(case, view):
            seen += 1
            assert part == own
            assert part.bit_count() >= 2
    assert seen  # honest rounds are among the views


@pytest.mark.parametrize(
    ("clients", "liars"), [(5, 1), (7, 1), (9, 1), (8, 2), (10, 2), (4, 2), (7, 3)]
)
def test_the_search_finds_what_a_majority_lets_through(clients: int, liars: int):
    """t as it once was; liars as in the finding, or beyond a third with today's t."""
    majority = clients // 2 + 1
    threshold = majority if 3 * liars <= clients else plan(clients, 1, 0.1).threshold
    assert list(itertools.islice(two_faced(complete(clients, liars, threshold)), 1))


def test_the_search_finds_what_the_ring_s_holders_alone_let_through():
    """Without a quorum of all, a cluster of liars parts the ring in two lists."""
    case = small_ring(12, 4, 0)._replace(quorum=1)
    apart = case._replace(liars=0b000001000001, threshold=4)
    assert list(itertools.islice(two_faced(apart), 1))


def test_without_one_list_for_all_a_vector_can_be_opened_although_2t_is_more_than_n_and_b():
    """Each client is shown a list of its own, of t names; 2t = 10 > 7 + 2."""
    n, liars, t = 7, {5, 6}, 5
    everyone = set(range(n))
    boxes = {0: {1, 2, 5, 6}, **{u: everyone - {u} for u in range(1, 5)}}
    dead: dict[int, set[int]] = {0: set(), 1: {2}, 2: {1}, 3: {1, 2}, 4: {1, 2}}
    lists = {u: ({u} | boxes[u]) - dead[u] for u in boxes}
    assert all(len(alive) >= t and u in alive for u, alive in lists.items())
    held = {c: {u for u in boxes if c in boxes[u] and c in dead[u]} | liars for c in (1, 2)}
    assert all(len(shares) >= t for shares in held.values())  # so the keys of 1 and 2 are open
    masks_of_0 = boxes[0] - liars - set(held)
    assert not masks_of_0  # nothing is left on its vector, whose own seed it tells itself
    # With a quorum of one list nobody would have answered.
    signed = [sum(alive == lists[u] for alive in lists.values()) + len(liars) for u in lists]
    assert max(signed) < quorum(n)


def test_the_search_finds_parts_where_too_few_hold_a_secret():
    """A ring of t = k/2 + 1: survivors with a gap between them can be summed apart."""
    case = ring(8, 2, 0, 2, 6)
    found = [part for view in one_list(case) for part in parts(case, view) if part.bit_count() < 3]
    assert found
