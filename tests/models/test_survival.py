# SPDX-License-Identifier: Apache-2.0
"""Models of survival: likelihoods by hand, and whole runs on synthetic patients."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.metrics import c_index
from agnosticfl.core.model import Model
from agnosticfl.data.loaders import tcga_brca
from agnosticfl.data.store import open_store, write_store
from agnosticfl.errors import BadInput
from agnosticfl.export.folder import export_run
from agnosticfl.export.model import load
from agnosticfl.export.predict import measure_store
from agnosticfl.models import cox, hazard
from agnosticfl.registry import MODELS
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.data.survival_files import patients, write

W = 0.5  # the one weight of the risk


def params(model: Model, base: list[float] | None = None) -> Any:
    own = model.init(jax.random.key(0))
    own["risk"]["linear"]["kernel"] = jnp.full((1, 1), W)
    return own if base is None else {**own, "base": jnp.array(base)}


def test_the_likelihood_in_discrete_time_by_hand():
    model = hazard(1, edges=[10.0, 20.0])
    x = jnp.array([[2.0], [0.0], [0.0], [2.0], [0.0]])
    # An event at 5, one at an edge, news until 25 and until 15, an event after the last edge.
    y = jnp.array([[5.0, 1], [10.0, 1], [25.0, 0], [15.0, 0], [30.0, 1]])
    base = [-1.0, -2.0, 0.5]

    def p(log_odds: float) -> float:
        return 1 / (1 + math.exp(-log_odds))

    expected = [
        -math.log(p(-1 + W * 2)),
        -math.log(p(-1)),
        -math.log(1 - p(-1)) - math.log(1 - p(-2)),
        -math.log(1 - p(-1 + W * 2)),
        -math.log(1 - p(-1)) - math.log(1 - p(-2)) - math.log(p(0.5)),
    ]
    losses = model.per_example_loss(params(model, base), {"x": x, "y": y}, None)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


# Times 1, 2, 2, 3 of one client; the second of the two at 2 is lost sight of.
X = np.array([[1.0], [0.0], [2.0], [-1.0]], np.float32)
Y = np.array([[1, 1], [2, 1], [2, 0], [3, 1]], np.float32)


def with_risk_sets() -> dict[str, jax.Array]:
    client, split = np.zeros(4, int), np.array(["train"] * 4)
    sets = tcga_brca.at_risk(X, Y, client, split)
    return {"x": jnp.array(X), "y": jnp.array(Y), **{k: jnp.array(v) for k, v in sets.items()}}


def test_coxs_partial_likelihood_by_hand():
    model, e = cox(1), math.exp
    risk = [e(W * 1), e(W * 0), e(W * 2), e(W * -1)]
    expected = [
        -math.log(risk[0] / sum(risk)),
        -math.log(risk[1] / sum(risk[1:])),  # the other one at 2 is still at risk
        0.0,  # no event
        -math.log(risk[3] / risk[3]),  # nobody else is left
    ]
    losses = model.per_example_loss(params(model), with_risk_sets(), None)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


def test_coxs_losses_do_not_depend_on_the_batch():
    model, examples = cox(1), with_risk_sets()
    together = model.per_example_loss(params(model), examples, None)
    for i in range(4):
        alone = {name: array[i : i + 1] for name, array in examples.items()}
        np.testing.assert_allclose(
            model.per_example_loss(params(model), alone, None), together[i : i + 1], atol=1e-6
        )


def test_who_is_not_at_risk_has_no_gradient():
    model, examples = cox(1), with_risk_sets()
    padded = examples | {"at_risk": examples["at_risk"].at[3].set(1e6)}

    def slope(given: dict[str, jax.Array]) -> Any:
        def total(w: Any) -> jax.Array:
            return model.per_example_loss(w, given, None).sum()

        return jax.grad(total)(params(model))["risk"]["linear"]["kernel"]

    np.testing.assert_allclose(slope(padded), slope(examples))
    assert np.isfinite(slope(padded)).all()


def test_a_higher_risk_is_said_to_come_sooner():
    """The concordance index of what a model says: the larger x, the earlier."""
    for model in (cox(1), hazard(1, edges=[1.5])):
        assert model.forward is not None
        said = np.asarray(model.forward(params(model), {"x": jnp.array([[3.0], [2.0], [1.0]])}))
        np.testing.assert_allclose(said, [-W * 3, -W * 2, -W * 1])
        times = np.array([[1.0, 1], [2.0, 1], [3.0, 1]])
        assert c_index(said, times, np.ones(3)) == 1.0


@pytest.mark.parametrize("edges", [[], [0.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
def test_edges_must_rise(edges: list[float]):
    with pytest.raises(BadInput, match=r"edges of hazard is .*; they must be above 0"):
        hazard(1, edges=edges)


def test_an_option_of_another_kind_is_refused():
    with pytest.raises(BadInput, match="edges"):
        MODELS.build({"name": "hazard", "features": 1, "edges": "1,2"}, "model")


@pytest.mark.slow
def test_both_tasks_are_trained_and_exported(tmp_path: Path):
    """On synthetic patients, whose age decides; what is exported is as good as the report says."""
    folder = write(tmp_path, patients(20))
    for task, sets in (("tcga-brca", False), ("tcga-brca-cox", True)):
        store = tmp_path / task
        write_store(tcga_brca.load([folder], risk_sets=sets), store)
        config = resolve(task, rounds=5, sets=[f"data.path={store}"])
        out = tmp_path / "runs" / task
        summary = run(config, out)
        values = [v["c_index"] for v in summary["test"].values()]
        assert min(values) > 0.9
        export_run(out, tmp_path / "exported" / task)
        measured = measure_store(load(tmp_path / "exported" / task), open_store(store), "test")
        assert measured.domains == summary["test"]


def test_cox_needs_risk_sets(tmp_path: Path):
    write_store(tcga_brca.load([write(tmp_path, patients(4))]), tmp_path / "store")
    with pytest.raises(BadInput, match=r"at_risk.*--risk-sets"):
        build(resolve("tcga-brca-cox", sets=[f"data.path={tmp_path / 'store'}"]))
