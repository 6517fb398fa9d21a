# SPDX-License-Identifier: Apache-2.0
"""The paper's models: sizes, formulas, gradients. What all models have is in `test_contract`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core import tree
from agnosticfl.core.model import Model
from agnosticfl.errors import BadInput
from agnosticfl.models import cifg, cnn, lstm
from agnosticfl.models.helpers.recurrent import over_time
from agnosticfl.models.keyboard_cifg import cifg_unit
from agnosticfl.models.word_lstm import lstm_unit
from tests.helpers.images import images

SMALL: dict[str, Any] = {"words": 6, "embedding": 3, "hidden": 5}
PAD, BOS, EOS, OOV = 0, 1, 2, 9  # the words are 3 … 8
SENTENCES = [
    [BOS, 3, 4, 8, EOS, PAD],
    [BOS, 5, OOV, 5, 6, 7],  # too long for its end to be there
    [BOS, EOS, PAD, PAD, PAD, PAD],
]
Formulas = Callable[[Any, list[int]], list[np.ndarray]]


@pytest.mark.parametrize(
    ("model", "size", "layers"),
    [
        (cnn(), 1_206_590, [(9 + 1) * 32, (9 * 32 + 1) * 64, (9216 + 1) * 128, (128 + 1) * 62]),
        (lstm(), 4_050_748, [10004 * 96, 767 * 4 * 670, (670 + 1) * 96, (96 + 1) * 10004]),
        (cifg(), 1_412_634, [10004 * 96, (96 + 96 + 1) * 3 * 670, 670 * 96]),
    ],
)
def test_the_number_of_parameters(model: Model, size: int, layers: list[int]):
    assert tree.size(jax.eval_shape(model.init, jax.random.key(0))) == size == sum(layers)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gate(w: Any, number: int, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """W x + U h + b of one gate."""
    part = slice(number * SMALL["hidden"], (number + 1) * SMALL["hidden"])
    gates = w["gates"]
    return x @ gates["kernel"][:, part] + h @ w["recurrent"][:, part] + gates["bias"][part]


def lstm_formulas(w: Any, inputs: list[int]) -> list[np.ndarray]:
    """The logits after each id of one sentence."""
    h = c = np.zeros(SMALL["hidden"])
    logits: list[np.ndarray] = []
    for token in inputs:
        x = w["embedding"]["embedding"][token]
        i, f = sigmoid(gate(w, 0, x, h)), sigmoid(gate(w, 1, x, h))
        g, o = np.tanh(gate(w, 2, x, h)), sigmoid(gate(w, 3, x, h))
        c = f * c + i * g
        h = o * np.tanh(c)
        narrow = h @ w["dense"]["kernel"] + w["dense"]["bias"]
        logits.append(narrow @ w["output"]["kernel"] + w["output"]["bias"])
    return logits


def cifg_formulas(w: Any, inputs: list[int]) -> list[np.ndarray]:
    """With i = 1 − f, a projection, and the embedding once more as output."""
    h, c = np.zeros(SMALL["embedding"]), np.zeros(SMALL["hidden"])
    table = w["embedding"]["embedding"]
    logits: list[np.ndarray] = []
    for token in inputs:
        x = table[token]
        f = sigmoid(gate(w, 0, x, h))
        i = 1 - f
        g, o = np.tanh(gate(w, 1, x, h)), sigmoid(gate(w, 2, x, h))
        c = f * c + i * g
        h = (o * np.tanh(c)) @ w["projection"]
        logits.append(table @ h)
    return logits


def random_params(model: Model) -> Any:
    """Biases too, so that no term of a formula is 0."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)


LANGUAGE_MODELS = [(lstm(**SMALL), lstm_formulas), (cifg(**SMALL), cifg_formulas)]


@pytest.mark.parametrize(("model", "formulas"), LANGUAGE_MODELS)
@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_a_sentence_s_loss_is_that_of_the_formulas(model: Model, formulas: Formulas, dtype: str):
    w = random_params(model)
    expected: list[float] = []
    for sentence in SENTENCES:
        losses = [
            np.log(np.exp(logits).sum()) - logits[target]
            for logits, target in zip(formulas(w, sentence[:-1]), sentence[1:], strict=True)
            if target != PAD
        ]
        expected.append(float(np.mean(losses)))
    examples = {"tokens": jnp.array(SENTENCES, dtype)}
    actual = jax.jit(model.per_example_loss)(w, examples, None)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("unit", "gates", "size", "projected"), [(lstm_unit, 4, 5, False), (cifg_unit, 3, 2, True)]
)
@pytest.mark.parametrize("written_out", [False, True])
def test_the_gradients_of_a_layer_are_those_of_its_formulas(
    unit: Any,
    gates: int,
    size: int,
    projected: bool,
    written_out: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    rng = np.random.default_rng(0)
    shapes = {"u": (size, 5 * gates), "z": (4, 3, 5 * gates)} | ({"p": (5, 2)} if projected else {})
    given = {k: jnp.array(rng.normal(size=shape), jnp.float32) for k, shape in shapes.items()}
    if written_out:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def layer(given: dict[str, jax.Array]) -> jax.Array:
        return over_time(unit, given["u"], given.get("p"), given["z"])

    def one_by_one(given: dict[str, jax.Array]) -> jax.Array:
        h, c = jnp.zeros((3, size)), jnp.zeros((3, 5))
        hidden: list[jax.Array] = []
        for z in given["z"]:
            c, m = unit(c, *jnp.split(z + h @ given["u"], gates, axis=-1))
            h = m @ given["p"] if projected else m
            hidden.append(h)
        return jnp.stack(hidden)

    def gradients(function: Any) -> Any:
        value = jax.value_and_grad(lambda given: jnp.sum(jnp.sin(3 * function(given))))
        return jax.tree.leaves(jax.jit(value)(given))

    for actual, expected in zip(gradients(layer), gradients(one_by_one), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [model for model, _ in LANGUAGE_MODELS])
def test_an_empty_sentence_has_no_loss_and_no_gradient(model: Model):
    def loss(params: Any) -> jax.Array:
        return model.per_example_loss(params, {"tokens": jnp.zeros((1, 6), jnp.int16)}, None)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(random_params(model))
    assert value == 0
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(jax.device_get(gradient)))


@pytest.mark.parametrize("model", [model for model, _ in LANGUAGE_MODELS])
def test_an_eos_that_goes_in_is_a_pad(model: Model):
    tokens = jnp.array([[BOS, EOS, 4], [BOS, PAD, 4], [BOS, EOS, PAD]])
    measure = jax.jit(model.per_example_metrics)
    total = measure(random_params(model), {"tokens": tokens})["perplexity"].total
    # The 4 is predicted from the same ids in the first two; the first predicts the eos as well.
    np.testing.assert_allclose(total[0], total[1] + total[2], rtol=1e-5)


@pytest.mark.parametrize("make", [lstm, cifg])
def test_metrics_of_a_language_model_are_chosen_by_name(make: Callable[..., Model]):
    names = ["in_vocab_accuracy_tff", "perplexity"]
    model = make(**SMALL, metrics=names)
    order: list[str] = []  # JAX would bring it in another one

    def measured(params: Any, examples: Any) -> Any:
        results = model.per_example_metrics(params, examples)
        order.extend(results)
        return results

    results = jax.jit(measured)(random_params(model), {"tokens": jnp.array(SENTENCES)})
    assert order == names
    np.testing.assert_array_equal(results["perplexity"].weight, [4, 5, 1])
    np.testing.assert_array_equal(results["in_vocab_accuracy_tff"].weight, [3, 4, 0])
    with pytest.raises(BadInput, match="unknown metric 'perplexty'; did you mean 'perplexity'"):
        make(**SMALL, metrics=["perplexty"])
    with pytest.raises(BadInput, match="hidden of a language model is 0; it must be at least 1"):
        make(hidden=0)


def test_the_cnn_takes_bytes_and_floats_alike():
    model, examples = cnn(classes=2), images(4)
    params, loss = jax.jit(model.init)(jax.random.key(0)), jax.jit(model.per_example_loss)
    floats = {"x": examples["x"].astype(np.float32) / 255, "y": examples["y"]}
    losses = [loss(params, e, None) for e in (examples, floats)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_the_cnn_drops_out_in_training_only():
    model, examples = cnn(classes=2), jax.tree.map(jnp.asarray, images(4))
    params, loss = jax.jit(model.init)(jax.random.key(0)), jax.jit(model.per_example_loss)
    one, same, other, none = (
        loss(params, examples, key) for key in (*map(jax.random.key, (1, 1, 2)), None)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert not np.allclose(one, none)
