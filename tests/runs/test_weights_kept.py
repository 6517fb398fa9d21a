# SPDX-License-Identifier: Apache-2.0
"""A λ that is not finite stays as it was, and the run says so."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax import Array

from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.files import read_json
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.runs.summary import weights_kept
from agnosticfl.weights import exponentiated_gradient


def lost_without_all() -> WeightRule:
    """Exponentiated gradient, but no number in a round from which a domain is absent."""
    rule = exponentiated_gradient(0.1)

    def update(state: Array, stats: DomainStats) -> tuple[Array, Array]:
        weights, state = rule.update(state, stats)
        lost = jnp.where(jnp.all(stats.domain_count > 0), 0.0, jnp.nan)
        return weights + lost, state + lost

    return rule._replace(update=update)


@pytest.mark.nan_input
@pytest.mark.parametrize("engine", ["auto", "padded"])  # rounds in blocks, and one by one
def test_a_run_says_once_in_which_rounds_weights_were_kept(tmp_path: Path, engine: str):
    rule = f"weight_rule={{name = '{__name__}:lost_without_all'}}"
    sets = ["clients_per_round=9", "data.points=[8, 120, 200, 250, 350]", rule]
    config = resolve("toy", rounds=12, sets=[*sets, f"engine='{engine}'"])
    said: list[str] = []
    run(config, tmp_path / "run", say=said.append)
    records = read_records(tmp_path / "run")
    kept = [r["round"] for r in records if 0 in r["count"]]
    assert 0 < len(kept) < 12
    assert [r["round"] for r in records if not r["weights_taken"]] == kept
    for before, record in itertools.pairwise(records):
        same = record["domain_weights"] == before["domain_weights"]
        assert same == (record["round"] in kept)
    assert all(record["step_taken"] for record in records)  # the model goes on
    (line,) = (text for text in said if "λ was left" in text)
    summary = read_json(tmp_path / "run" / "summary.json")
    assert line == f"warning: {summary['weights_kept']}"
    assert f"λ was left as it was in {len(kept)} of 12 rounds, first in round {kept[0]}:" in line


def test_a_run_whose_weights_moved_says_nothing():
    moved = [{"round": t, "weights_taken": True} for t in (1, 2)]
    assert weights_kept(moved) is None
    assert weights_kept([{"round": 1}]) is None  # as an older version wrote it
