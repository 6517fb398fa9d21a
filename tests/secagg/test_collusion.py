# SPDX-License-Identifier: Apache-2.0
"""Two-faced servers, with clients that work for them: what they can open of one client's vector."""

import numpy as np
import pytest

from agnosticfl.secagg.graph import least_threshold, plan, tolerates
from agnosticfl.secagg.memory import State
from agnosticfl.secagg.messages import Refused
from tests.secagg.adversary import far_witnesses, two_lists
from tests.secagg.federation import Play, federation, signed

# Clients, and how many of them work for the server: each opened a vector when t was a majority.
ONCE = [
    *((n, 1) for n in (5, 7, 9, 15, 19)),
    *((n, 2) for n in (8, 10, 12, 20, 30)),
    *((n, 3) for n in (21, 25, 33)),
]


def most_tolerated(clients: int) -> int:
    own = plan(clients, 1, 0.1)
    return max(d for d in range(clients) if tolerates(clients, own, d))


@pytest.mark.attack(
    "two lists of survivors, with dishonest clients",
    "t and the quorum, ⌊2n/3⌋ + 1",
)
@pytest.mark.parametrize(
    ("clients", "liars"), [*ONCE, *((n, most_tolerated(n)) for n in (3, 4, 5, 10, 20, 33))]
)
def test_two_lists_of_survivors_open_no_vector(clients: int, liars: int):
    play = Play(federation(clients))
    found = two_lists(play, victim=0, liars=range(1, liars + 1)).vector_of(0)
    assert found is None


@pytest.mark.parametrize("clients", [4, 7, 10])
def test_the_adversary_opens_a_vector_if_more_are_dishonest_than_is_said(clients: int):
    """So the test above would see it, and the bound is exact."""
    play = Play(federation(clients))
    liars = range(1, most_tolerated(clients) + 2)
    found = two_lists(play, victim=0, liars=liars).vector_of(0)
    np.testing.assert_array_equal(found, play.vectors[0])


@pytest.mark.attack(
    "two lists on the ring, without dishonest clients",
    "the quorum, and t ≥ ⌈(2(k + 1) + b)/3⌉",
)
def test_far_witnesses_open_no_vector_on_the_ring():
    assert far_witnesses(Play(federation(100)), victim=0).vector_of(0) is None


@pytest.mark.slow  # the same attack for minutes
def test_far_witnesses_open_no_vector_on_a_larger_ring_that_loses_more():
    assert far_witnesses(Play(federation(250, dropout=0.2)), victim=0).vector_of(0) is None


def test_far_witnesses_are_refused_by_the_threshold_before_it_comes_to_a_quorum():
    """The ring that once fell without a liar, k = 60 and t = 32, is one that clients refuse."""
    assert least_threshold(100, 60, 5) == 43
    play = Play(federation(100))
    setup = play.server.setup._replace(neighbours=60, threshold=32)
    with pytest.raises(Refused, match=r"threshold=32\) does not bear 5 dishonest of 100 clients"):
        play.answer(0, signed(setup))


@pytest.mark.parametrize(("insisted", "bears"), [(1, True), (3, True), (4, False)])
def test_a_client_refuses_a_round_that_bears_fewer_than_it_insists_on(insisted: int, bears: bool):
    members = federation(10)
    own = members[0].agreement._replace(dishonest=insisted)
    play = Play(members)
    play.members = [members[0]._replace(agreement=own), *members[1:]]
    play.stage()
    said = "GraphPlan(neighbours=9, threshold=7) does not bear 4 dishonest of 10 clients"
    assert play.refusals == ({} if bears else {0: said})


@pytest.mark.attack(
    "two sums of one round that differ by one client",
    "a client opens one sum for each t",
)
def test_of_one_round_a_client_opens_one_sum():
    """With the cohort that it answered, or another: the difference would be a vector."""
    members = federation(6)
    first = Play(members, number=1, t=4).to_the_end()
    for t, helps in ((3, False), (4, False), (5, True)):
        again = Play(members, number=1 + t, t=t, states=first.states)
        again.until("masked vectors")
        if helps:
            again.to_the_end()
            assert again.server.total is not None
            continue
        with pytest.raises(Refused, match="this client helped to open the sum of round 4 already"):
            again.answer(0, again.server.requests[0])


def test_a_round_that_opened_nothing_can_be_tried_again():
    members = federation(6)
    first = Play(members, number=1, t=4).until("unmasking")
    again = Play(members, number=2, t=4, states=first.states)
    again.to_the_end()
    np.testing.assert_array_equal(again.server.total, again.sum_of(range(6)))


def test_a_client_that_is_told_that_a_round_is_over_forgets_its_secrets():
    play = Play(federation(5)).until("survivors")
    assert play.part(0).mask_seed
    play.answer(0, play.server.over)
    assert play.states[0] == State(number=1)
    with pytest.raises(Refused, match="has answered all of round 1"):
        play.answer(0, play.server.requests[0])
    later = Play(federation(5), number=2)
    before = later.states[0]
    later.answer(0, play.server.over)
    assert later.states[0] == before
