# SPDX-License-Identifier: Apache-2.0
"""How often a client looks for messages."""

import pytest

from agnosticfl.deploy.node.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(pace: Pace, clock: Clock, seconds: float) -> int:
    """How many looks there are until a message comes after so many seconds, with that one."""
    until, number = clock.now + seconds, 1
    while clock.now < until:
        clock.now += pace.pause()
        number += 1
    came = clock.now
    clock.now += 0.5  # its work
    pace.note_answer(came)
    return number


@pytest.mark.parametrize(
    ("idle", "low", "high"),
    [(0.0, 0.08, 0.12), (5.0, 0.8, 1.2), (14.0, 2.2, 3.4), (1e6, 2.4, 3.6)],
)
def test_looks_are_near_each_other_after_a_message_and_seldom_later(
    idle: float, low: float, high: float
):
    clock = Clock()
    pace = Pace(3.0, clock)
    clock.now += idle
    found = [pace.pause() for _ in range(100)]
    assert low <= min(found) <= max(found) <= high
    assert len(set(found)) > 50  # clients do not look all at once


def test_a_message_waits_for_a_look_for_a_fifth_of_its_time_at_most():
    clock = Clock()
    pace = Pace(1e9, clock)
    for seconds in (0.7, 3.0, 20.0, 300.0):
        before = clock.now
        looks(pace, clock, seconds)
        assert clock.now - before - 0.5 <= seconds * 1.25 + 0.15


def test_where_all_steps_are_long_looks_are_few_from_the_beginning():
    """Two hundred clients that look ten times a second while they wait half a minute: no."""
    clock = Clock()
    pace = Pace(30.0, clock)
    looks(pace, clock, 600.0)  # until the first message came: nothing follows from that
    assert looks(pace, clock, 30.0) > 20
    assert max(looks(pace, clock, 30.0) for _ in range(5)) < 15


def test_a_long_step_of_a_round_does_not_make_the_short_ones_wait():
    clock = Clock()
    pace = Pace(3.0, clock)
    for seconds in (1.0, 0.4, 0.4, 60.0):
        looks(pace, clock, seconds)
    assert pace.pause() < 0.13
