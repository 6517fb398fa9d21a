# SPDX-License-Identifier: Apache-2.0
"""Differential privacy: what is bounded, who adds the noise, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.core.channel import message_shapes
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.core.state import Window
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.build_channel import build_channel
from agnosticfl.runs.resolve import resolve
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")

FACTS = RunFacts(contribution_shapes(linear(), 2), 10, 4, 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "dp: epsilon is 0.0; it must be a number above 0"),
        ({"epsilon": -1}, "epsilon is -1"),
        ({"delta": 0.0}, "dp: delta is 0.0; it must lie between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"population": 100}, "assumes a population of 100 clients; .* the data has 40"),
        ({"population": 3}, "at least the clients per round, 4"),
        ({"mode": "local"}, "unknown mode of dp 'local'"),
        ({"clip": 0}, "dp: clip is 0; it must be a number above 0"),
        ({"weight": 0.5}, "dp: weight is 0.5; it must be a number of at least 1"),
        ({"quantile": 1.0}, "quantile is 1.0"),
        ({"noise_multiplier": -1}, "noise_multiplier is -1; it must be a number above 0"),
        (
            {"noise_multiplier": 1.0},
            "10 rounds are wanted, but noise multiplier 1 keeps epsilon 2",
        ),
    ],
)
def test_bad_budgets_are_refused(options: Any, message: str):
    with pytest.raises(BadInput, match=message):
        differential_privacy(FACTS, **({"epsilon": 2.0, "delta": 1e-5} | options))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["sampling.over_selection=1.3"], "uniform cohorts of fixed size only.*: leave it out"),
        (["dp.epsilonn=1"], "unknown option of dp 'epsilonn'; did you mean 'epsilon'"),
    ],
)
def test_runs_that_cannot_be_private_are_refused(sets: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        build(resolve("toy", sets=["dp.epsilon=9", "dp.delta=1e-5", *sets]))


def test_cohorts_chosen_by_data_are_refused():
    sets = ["dp.epsilon=9", "dp.delta=1e-5"]
    with pytest.raises(BadInput, match=r"its cohorts would tell who they are: choose .* 'afa'"):
        build(resolve("toy", "fedavg-target", "centre 1", sets=sets))


def test_an_example_counts_for_no_more_than_the_weight_that_is_given():
    """In the first round of the toy, whose domains have the same λ and very different counts."""

    def largest(weight: float) -> float:
        sets = ["dp.epsilon=50", "dp.delta=1e-3", "engine=padded", f"dp.weight={weight}"]
        algorithm = build(resolve("toy", rounds=3, sets=sets)).algorithm
        state = algorithm.init()._replace(
            window=Window(jnp.array([[90.0, 1.0, 1.0, 4.0, 4.0]]), jnp.array([90.0, 1, 1, 4, 4]))
        )
        _, info = algorithm.round(state, algorithm.cohort(1))
        return float(jnp.max(info.alpha)) * 100  # of the mean example it is 1 / 100

    assert largest(3.0) == pytest.approx(3.0, rel=1e-5)
    assert largest(50.0) == pytest.approx(0.2 * 100, rel=1e-5)


def test_under_secure_aggregation_the_clients_add_the_noise():
    sets = ["secure.name=simulate", "dp.epsilon=50", "dp.delta=1e-3", "engine=padded"]
    with pytest.raises(BadInput, match="mode must be 'distributed'"):
        build(resolve("toy", rounds=3, sets=sets))
    config = resolve("toy", rounds=3, sets=[*sets, "dp.mode=distributed"])
    built = build(config)
    shapes = contribution_shapes(built.model, 5)
    message = message_shapes(build_channel(config, built.privacy)(shapes), shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(message)} == {jnp.dtype("int32")}
