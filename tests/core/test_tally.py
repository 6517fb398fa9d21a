# SPDX-License-Identifier: Apache-2.0
"""Sums of what clients measure, against the evaluation of all examples at one place."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.core.evaluate import Evaluation, full_evaluator, measurer
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.metrics import auprc, auroc, break_even
from agnosticfl.core.metrics.tables import SCORES
from agnosticfl.core.model import Model, from_functions
from agnosticfl.core.tally import added, form_of, tallies, tally, told, wrong
from agnosticfl.errors import BadInput
from tests.helpers.problems import federated, quadratic
from tests.helpers.tallies import BINNED, COUNTED, classifier, examples, weights


def by_clients(model: Model, data: FederatedData, params: Any) -> Evaluation:
    form = form_of(model, data)
    each = [own for _, own in tallies(form, measurer(model, data)(params))]
    return told(form, added(form, each))


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("size", [0.01, 1.0, 5.0])
def test_sums_over_clients_say_what_all_examples_say(classes: int, size: float):
    model, data, params = classifier(classes), examples(classes), weights(classes, size)
    central, summed = full_evaluator(model, data)(params), by_clients(model, data, params)
    assert summed.examples == central.examples
    for domain, values in (*central.domains.items(), ("", central.overall)):
        found = summed.domains.get(domain, summed.overall)
        assert set(found) == set(values)
        for name in COUNTED:
            assert found[name] == values[name]
        for name in ("loss", "calibration_error"):
            assert found[name] == pytest.approx(values[name], rel=1e-12)
        for name in BINNED:
            error = summed.within[domain].get(name, 0)
            assert abs(found[name] - values[name]) <= error + 1e-12  # type: ignore[operator]
            assert error < 0.04
        assert summed.within[domain]["auroc"] > 0
    assert {name for errors in summed.within.values() for name in errors} <= set(BINNED)


@pytest.mark.parametrize("metric", [auroc, auprc, break_even])
@settings(max_examples=200, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-40.0, -1.01, -1.0, 0.0, 1e-6, 1.0, 1.001, 1.02, 30.0, 50.0])),
    seed=st.integers(0, 2**16),
)
def test_the_stated_error_covers_any_order_within_a_bin(metric: Any, scores: Any, seed: int):
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=len(scores))
    logits = np.stack([np.zeros(len(scores)), np.array(scores, float)], axis=1)
    once = np.ones(len(scores))
    exact = metric(logits, label, once)
    table = SCORES.add_up(logits, label, once) if len(scores) else np.zeros(SCORES.shape(2))
    value, within = metric.summed.tell(table, float(len(scores)))
    if exact is None:
        assert value is None
    else:
        assert abs(value - exact) <= within + 1e-12


def test_whose_examples_are_in_one_bin_may_be_off_by_as_much_as_is_said():
    """Two positives above one negative, all in one bin: the area is 1, and its half is said."""
    logits = np.array([[0, 1.0], [0, 1.001], [0, 1.002]])
    label, once = np.array([0, 1, 1]), np.ones(3)
    assert auroc(logits, label, once) == 1.0
    assert auroc.summed is not None
    assert auroc.summed.tell(SCORES.add_up(logits, label, once), 3) == (0.5, 0.5)


def test_means_have_the_weights_of_their_metric_and_absent_domains_no_value():
    data = federated([[1, 2, 3], [5, 8]], [[0, 0, 1], [1, 1]], num_domains=3)
    found = by_clients(quadratic(), data, {"w": jnp.float32(2.0)})
    assert found.domains["0"]["loss"] == pytest.approx((1 + 0) / 2)
    assert found.domains["1"]["loss"] == pytest.approx((1 + 9 + 36) / 3)
    assert found.domains["2"]["loss"] is None
    assert found.examples == [2, 3, 0]


@pytest.mark.nan_input
def test_a_client_that_is_not_finite_adds_nothing_and_is_counted():
    data = federated([[1, 2], [np.inf], [4]], [[0, 1], [1], [1]], num_domains=2)
    model, params = quadratic(), {"w": jnp.float32(0.0)}
    form = form_of(model, data)
    total = added(form, [own for _, own in tallies(form, measurer(model, data)(params))])
    assert total.left_out == 1
    assert told(form, total).domains == {"0": {"loss": 1.0}, "1": {"loss": (4 + 16) / 2}}


@pytest.mark.nan_input
def test_a_model_that_diverged_is_as_bad_as_can_be():
    model, data = classifier(2), examples(2)
    found = by_clients(model, data, {"w": jnp.full((3, 2), jnp.nan)})
    assert all(values["loss"] == np.inf for values in found.domains.values())
    assert all(values["auroc"] == -np.inf for values in found.domains.values())


def test_a_metric_that_no_sums_tell_is_refused():
    model = from_functions(
        lambda _: {"w": jnp.zeros(3)},
        lambda w, e: e["x"] @ w["w"],
        forward=lambda w, e: e["x"] @ w["w"],
        outputs="values",
        metrics=("rmse", "c_index"),
    )
    with pytest.raises(BadInput, match="'c_index' needs all outputs at once"):
        form_of(model, examples(2))


def changed(own: Any, part: str, name: str, place: Any, by: float) -> Any:
    arrays = {key: array.copy() for key, array in getattr(own, part).items()}
    arrays[name][place] += by
    return own._replace(**{part: arrays})


@pytest.mark.parametrize(
    ("part", "name", "place", "by", "line"),
    [
        ("means", "loss", (1, 0), -1000, "its examples are"),
        ("means", "loss", (1, 0), 0.5, "its examples are"),
        ("means", "accuracy", (1, 1), -1000, "the weight of accuracy is"),
        ("tables", "classes", (0, 1, 0), 1, "its table of classes is none of"),
        ("tables", "classes", (0, 0, 0), 500, "its table of classes is none of"),
        ("tables", "scores", (2, 0, 1, 3), 1, "its table of scores is none of"),
        ("tables", "scores", (2, 0, 1, 3), -1, "its table of scores is none of"),
        ("tables", "sureness", (0, 3), 1000, "its table of sureness is none of"),
        ("tables", "sureness", (0, 3), np.nan, "a number of it is not finite"),
    ],
)
def test_a_tally_that_contradicts_itself_is_seen(
    part: str, name: str, place: Any, by: float, line: str
):
    model, data = classifier(2), examples(2)
    form = form_of(model, data)
    own = tally(form, measurer(model, data)(weights(2)))
    assert wrong(form, own) is None
    assert wrong(form, form.zeros) is None
    found = wrong(form, changed(own, part, name, place, by))
    assert found is not None
    assert line in found
