# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.evaluate import evaluator, worst_domain
from agnosticfl.metrics import Mean, accuracy
from agnosticfl.model import from_functions
from tests.problems import federated, quadratic

DATA = federated([[1, 2, 3], [5, 8]], [[0, 0, 1], [1, 1]], num_domains=3)
W = {"w": jnp.float32(2.0)}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 64])
def test_the_size_of_batches_does_not_matter(batch_size: int):
    results = evaluator(quadratic(), DATA, batch_size)(W)
    assert results["0"]["loss"] == pytest.approx((1 + 0) / 2)
    assert results["1"]["loss"] == pytest.approx((1 + 9 + 36) / 3)
    assert results["2"]["loss"] is None


def test_worst_domain_and_gap():
    worst = worst_domain(evaluator(quadratic(), DATA)(W))
    assert worst.domain == "1"
    assert worst.gap == pytest.approx(46 / 3 - 1 / 2)


def test_metrics_are_weighted_means():
    model = from_functions(
        lambda _: W,
        lambda w, e: e["x"] * w["w"],
        lambda _, e: {"per_token": Mean(2 * e["x"], e["x"])},  # weight x, so always 2
    )
    assert evaluator(model, DATA, 2)(W)["1"]["per_token"] == pytest.approx(2.0)


def test_accuracy():
    result = accuracy(jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), jnp.array([1, 1, 1]))
    np.testing.assert_array_equal(result.total, [1, 0, 1])
    np.testing.assert_array_equal(result.weight, [1, 1, 1])


def test_a_bad_batch_size_is_refused():
    with pytest.raises(BadInput, match="evaluation batch size is 0; it must be at least 1"):
        evaluator(quadratic(), DATA, 0)
