# SPDX-License-Identifier: Apache-2.0
"""Every kind of model trains through the same algorithm."""

import re
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from agnosticfl import from_arrays, from_equinox, from_functions, from_linen, from_nnx
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.metrics import Mean
from agnosticfl.core.model import Model, with_forward
from agnosticfl.errors import BadInput
from agnosticfl.models import logistic
from tests.helpers.problems import assert_learns


def two_classes() -> FederatedData:
    """Points left and right of a line, on 8 clients, in 2 domains."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0.2 * x[:, 1]).astype(np.int32)
    return from_arrays({"x": x, "y": y}, rng.integers(8, size=200), rng.integers(2, size=200))


def cross_entropy(logits: jax.Array, examples: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


class LinenNet(linen.Module):
    deterministic: bool | None = None

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Dropout(0.1, deterministic=self.deterministic)(linen.Dense(8)(x))
        return linen.Dense(2)(x)


class EquinoxNet(eqx.Module):
    layers: list[Any]
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array):
        one, two = jax.random.split(key)
        self.layers = [eqx.nn.Linear(2, 8, key=one), eqx.nn.Linear(8, 2, key=two)]
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return self.layers[1](self.dropout(self.layers[0](x), key=key))


def equinox_loss(net: EquinoxNet, e: Any, key: jax.Array | None) -> jax.Array:
    keys = None if key is None else jax.random.split(key, len(e["x"]))
    return cross_entropy(jax.vmap(net)(e["x"], keys), e)


SAMPLE = {"x": jnp.zeros((1, 2)), "y": jnp.zeros(1, jnp.int32)}
MODELS: dict[str, Model] = {
    "logistic": logistic(features=2, classes=2),
    "from_nnx": from_nnx(
        lambda rngs: nnx.Sequential(nnx.Linear(2, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)),
        lambda net, e: cross_entropy(net(e["x"]), e),
    ),
    "from_functions": from_functions(
        lambda key: jax.random.normal(key, (2, 2)), lambda w, e: cross_entropy(e["x"] @ w, e)
    ),
    "from_linen": from_linen(LinenNet(), SAMPLE, lambda net, e: cross_entropy(net(e["x"]), e)),
    "from_equinox": from_equinox(EquinoxNet, equinox_loss),
}


# Those of the last two libraries are also trained where their models are exported.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("from_linen", "from_equinox")))
        for name in MODELS
    ],
)
def test_a_model_of_each_kind_trains(name: str):
    assert_learns(MODELS[name], two_classes(), rounds=30, rate=1.0, batch_size=10)


class NNXNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear, self.dropout = nnx.Linear(2, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(self.dropout(x))


NAMES = ["accuracy", "auroc"]


def by_plain_functions() -> tuple[Model, Any]:
    model = from_functions(
        lambda key: {"w": jax.random.normal(key, (2, 2))},
        lambda w, e: cross_entropy(e["x"] @ w["w"], e),
        forward=lambda w, e: e["x"] @ w["w"],
        metrics=NAMES,
    )
    return model, lambda w, x: x @ w["w"]


def by_nnx() -> tuple[Model, Any]:
    def by_hand(params: Any, x: jax.Array) -> jax.Array:
        net = NNXNet(nnx.Rngs(0))
        nnx.update(net, params)
        net.eval()
        return net(x)

    def logits(net: NNXNet, e: Any) -> jax.Array:
        return net(e["x"])

    loss = lambda net, e: cross_entropy(logits(net, e), e)  # noqa: E731
    return from_nnx(NNXNet, loss, forward=logits, metrics=NAMES), by_hand


def by_linen() -> tuple[Model, Any]:
    def logits(net: LinenNet, e: Any) -> jax.Array:
        return net(e["x"])

    loss = lambda net, e: cross_entropy(logits(net, e), e)  # noqa: E731
    model = from_linen(LinenNet(), SAMPLE, loss, forward=logits, metrics=NAMES)
    return model, lambda w, x: LinenNet(deterministic=True).apply({"params": w}, x)


def by_equinox() -> tuple[Model, Any]:
    def by_hand(params: Any, x: jax.Array) -> jax.Array:
        h = x @ params[".layers[0].weight"].T + params[".layers[0].bias"][None]
        return h @ params[".layers[1].weight"].T + params[".layers[1].bias"][None]

    def logits(net: EquinoxNet, e: Any) -> jax.Array:
        return jax.vmap(lambda x: net(x, None))(e["x"])

    return from_equinox(EquinoxNet, equinox_loss, forward=logits, metrics=NAMES), by_hand


@pytest.mark.parametrize("make", [by_plain_functions, by_nnx, by_linen, by_equinox])
def test_forward_is_the_module_called_by_hand_with_dropout_off(make: Any):
    model, by_hand = make()
    data = two_classes()
    examples = {name: jnp.asarray(array) for name, array in data.examples.items()}
    params = model.init(jax.random.key(3))
    said = jax.jit(model.forward)(params, examples)
    np.testing.assert_allclose(said, by_hand(params, examples["x"]), rtol=1e-5, atol=1e-6)
    assert (model.outputs, model.exact) == ("labels", ("auroc",))
    np.testing.assert_array_equal(model.wanted(examples), examples["y"])
    found = model.per_example_metrics(params, examples)
    assert list(found) == ["accuracy"]
    right = jnp.argmax(said, axis=1) == examples["y"]
    np.testing.assert_array_equal(found["accuracy"].total, right)
    hash(model)


def slope(**options: Any) -> Model:
    return from_functions(
        lambda _: {"w": jnp.float32(2)}, lambda w, e: jnp.abs(w["w"] * e["x"] - e["z"]), **options
    )


def test_named_metrics_stand_beside_one_s_own_and_compare_with_what_is_wanted():
    def own(_: Any, e: Any) -> dict[str, Mean]:
        return {"mine": Mean(e["x"], jnp.ones_like(e["x"]))}

    model = slope(
        per_example_metrics=own,
        higher_is_better={"mine": False},
        forward=lambda w, e: w["w"] * e["x"],
        outputs="values",
        wanted=lambda e: e["z"],
        metrics=["mae", "c_index"],
    )
    examples = {"x": jnp.array([1.0, 3.0]), "z": jnp.array([5.0, 5.5])}
    found = model.per_example_metrics(model.init(jax.random.key(0)), examples)
    assert list(found) == ["mine", "mae"]
    np.testing.assert_allclose(found["mae"].total, [abs(2 - 5), abs(6 - 5.5)])
    assert model.exact == ("c_index",)
    assert [name for name, _ in model.readings] == ["mine", "mae", "c_index"]
    twice = model._replace(per_example_metrics=lambda w, e: {"mae": own(w, e)["mine"]})
    again = with_forward(twice, lambda _, e: e["x"], "values", lambda e: e["z"], ["mae"])
    with pytest.raises(BadInput, match="metric 'mae' is both the model's own and a named one"):
        again.per_example_metrics({}, examples)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metrics": ["accuracy"]}, "metrics of a model is about what forward gives; give forward"),
        ({"outputs": "values"}, "outputs of a model is about what forward gives"),
        ({"wanted": lambda e: e["z"]}, "wanted of a model is about what forward gives"),
        ({"forward": lambda _, e: e["x"], "outputs": "colours"}, "unknown outputs of a model"),
        ({"forward": lambda _, e: e["x"], "metrics": ["mae"]}, "metric 'mae' is one of values"),
    ],
)
def test_what_is_said_of_outputs_must_fit(options: dict[str, Any], problem: str):
    with pytest.raises(BadInput, match=problem):
        slope(**options)


def test_outputs_of_another_shape_are_refused():
    model = slope(forward=lambda _, e: e["x"][:, None], outputs="values", metrics=["mae"])
    with pytest.raises(BadInput, match=r"of shape \[2, 1\]; outputs = 'values' means \[n\]"):
        jax.eval_shape(model.per_example_metrics, {}, {"x": jnp.ones(2), "y": jnp.ones(2)})


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_follow_from_the_key(name: str):
    one, same, other = (
        jax.tree.leaves(MODELS[name].init(jax.random.key(seed))) for seed in (1, 1, 2)
    )
    assert all(map(np.array_equal, one, same))
    assert not all(map(np.array_equal, one, other))


@pytest.mark.parametrize("name", ["from_linen", "from_equinox"])
def test_dropout_is_on_in_training_only(name: str):
    model, examples = MODELS[name], {"x": jnp.ones((64, 2)), "y": jnp.zeros(64, jnp.int32)}
    params = model.init(jax.random.key(0))
    assert np.ptp(model.per_example_loss(params, examples, jax.random.key(1))) > 0
    assert np.ptp(model.per_example_loss(params, examples, None)) == 0


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_plain_containers_of_arrays(name: str):
    # Checkpoints, messages and masks know dictionaries, not a library's own classes.
    params = MODELS[name].init(jax.random.key(0))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    assert isinstance(params, dict | jax.Array)


def test_state_that_is_no_parameter_is_refused():
    with pytest.raises(BadInput, match=r"the module's mean is a BatchStat; only parameters"):
        from_nnx(lambda rngs: nnx.BatchNorm(3, rngs=rngs), lambda _, e: jnp.zeros(len(e["x"])))
    norm = linen.BatchNorm(use_running_average=False)
    with pytest.raises(BadInput, match=r"the module has variables in batch_stats; only params"):
        from_linen(norm, SAMPLE, lambda net, e: net(e["x"]).sum(axis=1))


def test_a_missing_library_is_named_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    command = re.escape("from_equinox needs equinox: pip install 'agnosticfl[equinox]'")
    with pytest.raises(BadInput, match=command):
        from_equinox(EquinoxNet, equinox_loss)
