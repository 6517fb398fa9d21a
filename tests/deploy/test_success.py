# SPDX-License-Identifier: Apache-2.0
"""Secure rounds end with a sum: fewer than one in a hundred fails, with over-selection too."""

import pytest

from agnosticfl.deploy.flower.federation import RoundPolicy, enough_vectors
from tests.deploy.success import failures

STATED = 0.05  # of the clients are lost in a round


@pytest.mark.attack(
    "clients drop out at random",
    "neighbours planned for what the policy does",
)
@pytest.mark.parametrize("over_selection", [1.0, 1.3])
@pytest.mark.parametrize(("clients", "rounds"), [(10, 2000), (50, 400), (100, 200), (1000, 4)])
def test_rounds_succeed_at_the_stated_drop_out(clients: int, rounds: int, over_selection: float):
    assert len(failures(clients, over_selection, STATED, rounds)) < max(1, rounds / 100)


@pytest.mark.slow
@pytest.mark.parametrize("over_selection", [1.0, 1.3])
@pytest.mark.parametrize("loss", [0.0, STATED, 0.1])
def test_large_rounds_succeed_at_twice_the_stated_drop_out_too(loss: float, over_selection: float):
    for clients, rounds in ((50, 2000), (100, 1000), (1000, 100)):
        assert len(failures(clients, over_selection, loss, rounds)) < rounds / 100


def test_a_simulated_round_can_fail():
    assert len(failures(10, 1.0, 0.4, 20)) > 10
    assert len(failures(100, 1.3, 0.4, 10)) > 5


def test_no_more_are_left_out_on_purpose_than_the_neighbours_are_planned_for():
    policy = RoundPolicy(clients=77, minimum=77)
    assert enough_vectors(policy, 100, 0.1) == 90  # and not 77
    assert enough_vectors(policy, 77, 0.1) == 77
    assert enough_vectors(RoundPolicy(7, 7), 10, 0.1) == 9
