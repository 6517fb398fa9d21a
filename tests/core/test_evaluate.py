# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.evaluate import (
    Results,
    Worst,
    evaluator,
    full_evaluator,
    some_clients,
    worst_domain,
)
from agnosticfl.core.metrics import Mean
from agnosticfl.core.model import from_functions
from agnosticfl.errors import BadInput
from tests.helpers.problems import federated, quadratic

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
        higher_is_better={"per_token": True},
    )
    assert evaluator(model, DATA, 2)(W)["1"]["per_token"] == pytest.approx(2.0)


def test_worst_domain_by_a_metric_that_is_better_when_higher():
    results: Results = {
        "a": {"loss": 3.0, "accuracy": 0.75},
        "b": {"loss": 2.0, "accuracy": 0.5},
        "c": {"loss": None, "accuracy": None},
    }
    assert worst_domain(results, "accuracy") == Worst("b", loss=2.0, gap=0.25, value=0.5)
    assert worst_domain(results) == Worst("a", loss=3.0, gap=1.0, value=3.0)
    with pytest.raises(BadInput, match=r"unknown metric 'acuracy'; did you mean 'accuracy'\?"):
        worst_domain(results, "acuracy")


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_over_all_and_from_client_to_client(batch_size: int):
    result = full_evaluator(quadratic(), DATA, batch_size, spread=True)(W)
    assert result.overall["loss"] == pytest.approx((1 + 0 + 1 + 9 + 36) / 5)
    assert result.clients is not None
    first, second = (1 + 0 + 1) / 3, (9 + 36) / 2  # the clients' mean losses
    assert result.clients["loss"].variance == pytest.approx((second - first) ** 2 / 4)
    assert result.clients["loss"].worst_tenth == pytest.approx(second)


def test_the_worst_tenth_is_of_the_clients_that_have_examples():
    # 11 clients with accuracies 0, 0.1, …, 1, and an empty one: the worst tenth is two clients.
    data = federated([[k / 10] for k in range(11)] + [[]], [[0]] * 11 + [[]], num_domains=1)
    model = from_functions(
        lambda _: W,
        lambda _, e: e["x"],
        lambda _, e: {"accuracy": Mean(e["x"], jnp.ones_like(e["x"]))},
    )
    spread = full_evaluator(model, data, spread=True)(W).clients
    assert spread is not None
    assert spread["accuracy"].worst_tenth == pytest.approx((0 + 0.1) / 2)
    assert spread["loss"].worst_tenth == pytest.approx((1 + 0.9) / 2)


def test_a_subset_of_clients():
    results = evaluator(quadratic(), DATA, 2, clients=np.array([1]))(W)
    assert results["0"]["loss"] is None
    assert results["1"]["loss"] == pytest.approx((9 + 36) / 2)
    data = federated([[1]] * 100, [[0]] * 100, num_domains=1)
    chosen = some_clients(data, 10, seed=3)
    assert len(set(chosen.tolist())) == 10
    np.testing.assert_array_equal(chosen, some_clients(data, 10, seed=3))
    assert chosen.tolist() != some_clients(data, 10, seed=4).tolist()
    assert some_clients(data, 1000, seed=0).tolist() == list(range(100))


def test_nothing_to_evaluate_on_is_refused():
    data = federated([[1], []], [[0], []], num_domains=1)
    with pytest.raises(BadInput, match="there is no example to evaluate on"):
        evaluator(quadratic(), data, clients=np.array([1]))


def test_a_bad_batch_size_is_refused():
    with pytest.raises(BadInput, match="evaluation batch size is 0; it must be at least 1"):
        evaluator(quadratic(), DATA, 0)
