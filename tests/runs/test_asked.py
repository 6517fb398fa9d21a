# SPDX-License-Identifier: Apache-2.0
"""Clients who evaluate a private run whose server adds the noise: what they say, and its cost."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.channels.dp.questions import SHARE, Questions, find_answers
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.core.evaluate import Evaluation
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge
from agnosticfl.runs.build import build
from agnosticfl.runs.config import Config
from agnosticfl.runs.questions import AT_THE_END, num_questions, question
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.runs.spending import Spending
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")

QUESTIONS = Questions(number=8, clients=40, size=6)


def facts(cohort: int, questions: Questions | None = QUESTIONS) -> RunFacts:
    return RunFacts(contribution_shapes(linear(), 2), 10, cohort, 40, questions=questions)


def config(*sets: str, epsilon: float = 1000.0) -> Config:
    small = ["data.clients=200", "data.examples=10", "evaluation_every=2", "engine=padded"]
    own = [f"dp.epsilon={epsilon}", "dp.delta=1e-5", "dp.loss=3.0", "evaluation_by=clients"]
    return resolve("synthetic-points", rounds=2, sets=[*small, *own, *sets])


def test_where_everybody_is_in_every_round_epsilon_is_that_of_gaussians_together():
    """μ² = Σ (2 s / z)² over rounds and questions (Dong, Roth and Su 2022)."""
    privacy = differential_privacy(facts(40), 4.0, 1e-5)
    answers = privacy.answers
    assert answers is not None
    z = privacy.scale.noise
    epsilon = accounting.spent(privacy.budget, [Charge(z, 10)])
    assert 3.98 < epsilon <= 4.0
    mu = math.hypot(2 * math.sqrt(10) / z, 2 * math.sqrt(8) / answers.scale.noise)
    cdf = stats.norm.cdf
    delta = cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=0.02)


@pytest.mark.parametrize("noise", ["independent", "banded"])
def test_questions_cost_rounds_little(noise: Any):
    if noise == "banded":
        pytest.importorskip("jax_privacy")
    alone = differential_privacy(facts(4, None), 4.0, 1e-5, noise=noise)
    asked = differential_privacy(facts(4), 4.0, 1e-5, noise=noise)
    rounds = [Charge(alone.scale.noise, 10)]
    assert accounting.spent(alone.budget, rounds) <= 4.0 < accounting.spent(asked.budget, rounds)
    assert alone.scale.noise < asked.scale.noise < 1.03 * alone.scale.noise


def test_questions_alone_cost_their_share():
    answers = find_answers(QUESTIONS, 4.0, 1e-5)
    gaussian = accounting.sampled_gaussian(1.0, lambda _: 1.0, lambda *_: 0.0)
    alone = gaussian([Charge(answers.asked.noise, 8)], 1e-5)
    assert 0.99 * SHARE * 4.0 < alone + answers.asked.beyond <= SHARE * 4.0
    # How many there are tells the noise, and who they are does not.
    assert find_answers(QUESTIONS._replace(clients=1000), 4.0, 1e-5) == answers


def test_clients_say_what_a_model_is_worth_to_them(tmp_path: Path):
    summary = run(config(), tmp_path / "run")
    assert 1.5 < summary["overall"]["test"]["loss"] < 3.0  # of ten classes, after two rounds
    assert 0 <= summary["overall"]["test"]["accuracy"] <= 1
    assert "heldout" in read_records(tmp_path / "run")[-1]
    spent = summary["privacy"]
    assert spent["rounds"] == 2
    assert spent["epsilon"] <= 1000.0
    assert spent["asked"]["questions"] == 2  # a look, and test of the last model
    assert spent["asked"]["paid_for"] == num_questions(config())
    assert "measured" not in spent


def test_a_question_that_is_asked_again_is_counted_and_the_last_ones_are_set_aside(tmp_path: Path):
    own = config()
    built = build(own)
    state = built.algorithm.init()

    def asked(which: str, split: str) -> Evaluation:
        """By a run that was just started, or started again."""
        judge = Spending(built, tmp_path, state).counting(built).judge
        assert judge is not None
        return judge(state.params, question(own, which, 2, split))

    assert asked("look", "heldout").overall["loss"] is not None
    again = asked("look", "heldout")  # which is not paid for
    assert {*again.overall.values()} == {None}
    assert again.domains == dict.fromkeys(built.data.train.domains, again.overall)
    spent = read_json(tmp_path / "privacy.json")["asked"]
    assert spent["questions"] == num_questions(own) - len(AT_THE_END) == 1
    assert asked("last", "test").overall["loss"] is not None
    assert read_json(tmp_path / "privacy.json")["asked"]["questions"] == 2
    more = build(config("evaluation_every=1"))
    with pytest.raises(BadInput, match=r"had noise multiplier .* go on with the rounds, eval"):
        Spending(more, tmp_path, state)


def test_owners_of_examples_in_silos_are_not_asked():
    with pytest.raises(BadInput, match="whom nobody asks; let the server evaluate"):
        build(config("dp.silos=domain", epsilon=8.0))
