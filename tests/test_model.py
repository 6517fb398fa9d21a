# SPDX-License-Identifier: Apache-2.0
"""Every kind of model trains through the same algorithm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from agnosticfl import agnostic_fedavg, evaluator, from_arrays, from_functions, from_nnx
from agnosticfl.data import FederatedData
from agnosticfl.errors import BadInput
from agnosticfl.model import Model
from agnosticfl.models import logistic


def two_classes() -> FederatedData:
    """Points left and right of a line, on 8 clients, in 2 domains."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0.2 * x[:, 1]).astype(np.int32)
    return from_arrays({"x": x, "y": y}, rng.integers(8, size=200), rng.integers(2, size=200))


def cross_entropy(logits: jax.Array, examples: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


MODELS: dict[str, Model] = {
    "logistic": logistic(features=2, classes=2),
    "from_nnx": from_nnx(
        lambda rngs: nnx.Sequential(nnx.Linear(2, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)),
        lambda net, e: cross_entropy(net(e["x"]), e),
    ),
    "from_functions": from_functions(
        lambda key: jax.random.normal(key, (2, 2)), lambda w, e: cross_entropy(e["x"] @ w, e)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_each_kind_trains(name: str):
    data = two_classes()
    algorithm = agnostic_fedavg(
        MODELS[name], data, clients_per_round=8, batch_size=10,
        client_optimizer=optax.sgd(1.0),
    )  # fmt: skip
    measure = evaluator(MODELS[name], data, batch_size=64)
    state = algorithm.init()
    before = measure(state.params)
    for t in range(1, 31):
        state, _ = algorithm.round(state, algorithm.cohort(t))
    after = measure(state.params)
    for domain in data.domains:
        old, new = before[domain]["loss"], after[domain]["loss"]
        assert old is not None
        assert new is not None
        assert new < 0.6 * old


def test_initial_weights_follow_from_the_key():
    model = MODELS["logistic"]
    one, same, other = (model.init(jax.random.key(s)) for s in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert not np.array_equal(one["kernel"], other["kernel"])


def test_state_that_is_no_parameter_is_refused():
    with pytest.raises(BadInput, match=r"the module's mean is a BatchStat; only parameters"):
        from_nnx(lambda rngs: nnx.BatchNorm(3, rngs=rngs), lambda _, e: jnp.zeros(len(e["x"])))
