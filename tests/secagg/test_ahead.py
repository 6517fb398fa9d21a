# SPDX-License-Identifier: Apache-2.0
"""Rounds that are prepared while the sum of another one is being opened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.secagg import member as client
from agnosticfl.secagg.joining import question
from agnosticfl.secagg.memory import MOST_ROUNDS, State
from agnosticfl.secagg.messages import Refused, pack
from tests.secagg.federation import NOW, SERVER, Play, federation

CARRIED = ("masked vectors", "survivors", "unmasking")


def beside(first: Play, number: int, t: int) -> Play:
    """Another round of the same clients: what they remember is one thing."""
    other = Play(first.members, number=number, t=t, states=first.states)
    first.states = other.states
    return other


@pytest.mark.parametrize("clients", [5, 36])
def test_keys_and_shares_travel_with_the_round_before(clients: int):
    """Joins with the vectors, keys with the survivors, shares with the unmasking."""
    now = Play(federation(clients), number=1).until("masked vectors")
    for t in range(1, 4):
        now.stage()  # the vectors
        ahead = beside(now, t + 1, t + 1)
        now.stage()
        ahead.stage()  # keys
        now.stage()
        ahead.stage()  # shares
        assert now.server.total is not None
        np.testing.assert_array_equal(now.server.total, now.sum_of(range(clients)))
        assert ahead.server.stage == "masked vectors"
        assert len(now.states[0].rounds) == 1  # nothing is left of the one before
        assert now.states[0].opened == {b"a run": t}
        now = ahead


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_in_whatever_order_two_rounds_go_on(data: st.DataObject):
    """With drop-outs in both; the later one sends vectors when the earlier one is done."""
    one = Play(federation(7), number=1)
    two = beside(one, 2, 2)
    drops = {data.draw(st.integers(0, 6)): data.draw(st.sampled_from(CARRIED)) for _ in range(2)}
    while one.server.requests or two.server.stage != "masked vectors":
        ready = [p for p in (one, two) if p.server.requests and not _waits(p, one, two)]
        data.draw(st.sampled_from(ready)).stage(drops)
    two.to_the_end()
    for play in (one, two):
        assert play.server.total is not None
        np.testing.assert_array_equal(play.server.total, play.sum_of(play.server.survivors))
    assert not any(state.rounds for c, state in one.states.items() if c not in drops)


def _waits(play: Play, one: Play, two: Play) -> bool:
    done = play is two and play.server.stage == "masked vectors"
    return done and bool(one.server.requests)


def test_a_client_is_in_so_many_rounds_at_a_time_and_the_oldest_goes():
    play = Play(federation(5), number=1).until("survivors")
    later = range(2, 2 + MOST_ROUNDS)
    for number in later:
        beside(play, number, number)
    assert [part.number for part in play.states[0].rounds] == list(later)
    with pytest.raises(Refused, match="Survivors came while waiting for Setup and Setup"):
        play.answer(0, play.server.requests[0])


@pytest.mark.attack(
    "two sums of one round that differ by one client",
    "a client opens one sum for each t",
)
def test_of_two_rounds_that_are_prepared_one_opens_the_sum_of_t():
    one = Play(federation(6), number=1, t=4)
    two = beside(one, 2, 4).until("masked vectors")
    one.to_the_end()
    with pytest.raises(Refused, match="this client helped to open the sum of round 4 already"):
        two.answer(0, two.server.requests[0])


@pytest.mark.attack(
    "a vector under the masks of two rounds at once",
    "who masks it in one round leaves those before it",
)
def test_a_vector_is_under_masks_in_one_round_at_a_time():
    """Else two groups could be led to open one sum each, of the same t, with one client in both."""
    one = Play(federation(6), number=1, t=4).until("masked vectors")
    two = beside(one, 2, 4).until("masked vectors")
    one.stage()
    two.stage()
    with pytest.raises(Refused, match="Survivors is of another sum"):
        one.answer(0, one.server.requests[0])
    two.to_the_end()
    np.testing.assert_array_equal(two.server.total, two.sum_of(range(6)))


def test_a_round_of_another_run_takes_nothing_from_this_one():
    """Sums of another kind are of another run: this one's next round stays prepared."""
    one = Play(federation(5), number=1).until("masked vectors")
    of_another = [
        own._replace(agreement=own.agreement._replace(run=b"another")) for own in one.members
    ]
    other = Play(of_another, number=2, states=one.states).to_the_end()
    one.states = other.states
    one.to_the_end()
    for play in (one, other):
        assert play.server.total is not None
        np.testing.assert_array_equal(play.server.total, play.sum_of(range(5)))
    assert one.states[0].opened == {b"another": 2, b"a run": 1}


def test_boxes_of_the_earlier_round_come_too_late_once_the_later_one_has_the_vector():
    one = Play(federation(5), number=1).until("masked vectors")
    two = beside(one, 2, 2).until("survivors")
    with pytest.raises(Refused, match="Boxes came while waiting for Survivors"):
        one.answer(0, one.server.requests[0])
    two.to_the_end()
    assert two.server.total is not None


def test_a_round_that_is_given_up_leaves_the_other():
    one = Play(federation(5), number=1).until("survivors")
    two = beside(one, 2, 2)
    for place in range(5):
        two.answer(place, two.server.over)
    assert [part.number for part in one.states[0].rounds] == [1]
    one.to_the_end()
    np.testing.assert_array_equal(one.server.total, one.sum_of(range(5)))


def test_a_preparation_is_joined_in_rising_order_only():
    play = Play(federation(5), number=3)
    for number in (2, 3):
        asked = question(play.members[0].agreement, SERVER, number)
        with pytest.raises(Refused, match=f"round {number} is not after round 3"):
            client.answer(play.members[0], play.states[0], pack(asked), NOW)
    assert play.states[0] == State(3, rounds=play.states[0].rounds)
