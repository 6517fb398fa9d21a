# SPDX-License-Identifier: Apache-2.0
"""The number of lanes: found by measurement, remembered, and kept by a run that goes on."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from agnosticfl import from_functions
from agnosticfl.core import sampling
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes_engine
from agnosticfl.engines.helpers import plan
from agnosticfl.engines.helpers.tuning import Seconds, fastest, may_be_fastest, stopwatch
from agnosticfl.runs.run import Stopped, run
from tests.engines.tasks import logistic
from tests.helpers.problems import quadratic, random_federated
from tests.helpers.runs import results


def test_the_stopwatch_measures_once_and_remembers(tmp_path: Path):
    asked: list[int] = []

    def seconds(number: int) -> float:
        asked.append(number)
        return abs(number - 4) + 1.0

    memory = tmp_path / "made" / "lanes.json"
    for _ in range(2):
        assert fastest(stopwatch(memory)("a case", [1, 4, 9], seconds)) == 4
    assert asked == [1, 4, 9]
    stopwatch(memory)("another case", [1, 4], seconds)
    stopwatch()("a case", [1, 4], seconds)
    assert asked == [1, 4, 9, 1, 4, 1, 4]


def test_only_what_cannot_be_reckoned_is_worth_a_measurement():
    """A step of overhead r with L lanes costs r + L; fewer lanes take more steps."""

    def costs(steps: dict[int, int]) -> dict[int, Callable[[float], float]]:
        return {n: lambda r, n=n, s=s: s * (r + n) for n, s in steps.items()}

    # r = 2: 175, 154, 216; r = 20: 805, 550, 540, where 5 lanes are 2 % slower.
    assert may_be_fastest(costs({3: 35, 5: 22, 10: 18})) == [5]
    assert may_be_fastest(costs({13: 26, 25: 14})) == [25]  # r = 2: 390, 378; r = 20: 858, 630
    # r = 2: 180, 216; r = 20: 720, 540: a fifth one way, a third the other.
    assert may_be_fastest(costs({4: 30, 10: 18})) == [4, 10]
    # The same, and one that is between them and never the best.
    assert may_be_fastest(costs({4: 30, 7: 24, 10: 18})) == [4, 10]


def test_the_steps_of_the_first_rounds_are_those_of_their_layouts():
    data, sampler = random_federated(1), sampling.uniform(6, 5, 0)
    planner = plan.make_planner(
        ClientWork(quadratic(), optax.sgd(0.1), 3, batch_size=2), data, sampler, 0
    )
    rounds = range(1, plan.FIRST_ROUNDS + 1)
    layouts = plan.layouts(planner, plan.plans(planner, rounds), 3, 1)
    steps = plan.first_steps(planner, 3, 1)
    assert steps.wide == layouts.wide.sum()
    assert steps.wide + steps.late == layouts.steps.sum()
    assert plan.first_steps(planner, 3, 3) == (layouts.steps.sum(), 0)


def test_lanes_are_timed_for_a_model_that_is_not_tiny():
    model = from_functions(
        lambda _: {"w": jnp.ones(5000)}, lambda w, e: jnp.square(e["x"] - jnp.sum(w["w"]) / 5000)
    )
    sampler, data = sampling.uniform(6, 5, 0), random_federated(1)

    def engine(model: Any, **options: Any) -> Any:
        work = ClientWork(model, optax.sgd(0.1), 3, batch_size=2)
        return lanes_engine(work, data, sampler, 0, **options).choices

    found = engine(model, tuner=stopwatch())
    assert set(found["seconds"]) == {"1", "4"}  # what is tried on a CPU
    assert str(found["lanes"]) == min(found["seconds"], key=found["seconds"].get)
    assert "seconds" not in engine(quadratic(), tuner=stopwatch())
    assert engine(model, lanes=3, tuner=stopwatch())["lanes"] == 3
    assert engine(model)["lanes"] == 1  # the rule, without a tuner


def pretend(winner: int) -> Callable[..., Seconds]:
    def tune(_case: Any, candidates: Sequence[int], _: Any) -> Seconds:
        return {str(n): float(n != winner) for n in candidates}

    return tune


def test_a_run_that_goes_on_keeps_its_lanes(tmp_path: Path):
    run(logistic(), tmp_path / "whole", tuner=pretend(4))
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            logistic(), tmp_path / "run", tuner=pretend(4),
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 2,
        )  # fmt: skip
    recorded = json.loads((tmp_path / "run" / "engine.json").read_text())
    assert (recorded["engine"], recorded["lanes"], recorded["devices"]) == ("lanes", 4, 1)
    run(logistic(), tmp_path / "run", resume=True, tuner=pretend(1))
    assert results(tmp_path / "run") == results(tmp_path / "whole")
