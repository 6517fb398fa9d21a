# SPDX-License-Identifier: Apache-2.0
"""What a comparison runs, in which order, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from agnosticfl.errors import BadInput
from agnosticfl.runs.compare import compare, order_of
from agnosticfl.runs.config import Config


def compared(out: Path, names: str, **options: Any) -> list[Config]:
    """The configurations that a comparison would run."""
    ran: list[Config] = []

    def runner(config: Config, _: Any) -> dict[str, Any]:
        ran.append(config)
        return {"worst_domain": "centre 1"}

    compare("toy", out, runner, algorithms=names.split(","), seeds=1, **options)
    return ran


def test_a_comparison_runs_what_it_was_asked_for_and_keeps_the_order_of_its_tables(tmp_path: Path):
    ran = compared(tmp_path, "drfa,afa,fedavg-target,fedavg")
    # FedAvg tells the target, and so comes before those who need it.
    assert [config.algorithm for config in ran] == ["fedavg", "drfa", "afa", "fedavg-target"]
    assert [config.target for config in ran] == [None, None, None, "centre 1"]
    assert order_of(tmp_path)[:4] == ["drfa", "afa", "fedavg-target", "fedavg"]


def test_the_target_is_found_on_held_out_clients_where_there_are_any(tmp_path: Path):
    def target(summary: dict[str, Any], said: list[str]) -> str | None:
        ran: list[Config] = []

        def runner(config: Config, _: Any) -> dict[str, Any]:
            ran.append(config)
            return {"worst_domain": "centre 1", **summary}

        names = ["fedavg", "fedavg-target"]
        compare("toy", tmp_path, runner, algorithms=names, seeds=2, say=said.append)
        return ran[-1].target

    heldout = {"centre 1": {"loss": 0.1}, "centre -1": {"loss": 0.9}, "centre 0.5": {"loss": None}}
    said: list[str] = []
    assert target({"heldout": heldout, "higher_is_better": {"loss": False}}, said) == "centre -1"
    assert said == []
    assert target({}, said) == "centre 1"
    assert len(said) == 1
    assert "no held-out clients, so the target 'centre 1' was found on test" in said[0]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ("afa,aff", {}, "unknown algorithm 'aff'; did you mean 'afl'|'afa'"),
        ("", {}, "unknown algorithm ''"),
        ("afa,fedavg-target", {}, "fedavg-target needs --target DOMAIN, or fedavg among"),
        ("afa,fedavg", {"target": "centre 1"}, "none of afa, fedavg takes a --target"),
        ("term", {"sets": ["weight_rule.learning_rate=2"]}, "has no effect on any of term"),
        ("cvar", {"sets": ["algorithms.cvar.weight_rule.level=2"]}, "of weight_rule 'cvar' is 2"),
        (
            "afa", {"sets": ["weight_rule.after=[{name='minimum_weight', lowest=0.3}]"]},
            "minimum weight is 0.3 for 5 domains",
        ),
        (
            "q-fedavg", {"sets": ["algorithms.q-fedavg.options.q=-1"]},
            "q of q-fedavg is -1; it must be a number of at least 0",
        ),
        ("q-fedavg", {"sets": ["algorithms.q-fedavg.options.p=1"]}, "option of q-fedavg 'p'"),
        ("q-fedavg", {"sets": ["algorithms.q-fedavg.options.q=x"]}, "is 'x'; it must be a number"),
        ("afa", {"sets": ["options.q=1"]}, "unknown option of afa 'q'"),
        (
            "fedprox", {"sets": ["algorithms.fedprox.client_optimizer.proximal=-1"]},
            "proximal of client_optimizer is -1; it must be a number of at least 0",
        ),
        ("afa", {"sets": ["local_steps=0"]}, "local_steps in task 'toy' is 0; it must be a whole"),
    ],
)  # fmt: skip
def test_bad_comparisons_are_refused_before_anything_runs(
    tmp_path: Path, names: str, changes: dict[str, Any], message: str
):
    with pytest.raises(BadInput, match=message):
        compared(tmp_path, names, **changes)
