# SPDX-License-Identifier: Apache-2.0
"""Every built-in model goes through the same tests; losses are those of the formulas."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl import from_arrays, models
from agnosticfl.core import tree
from agnosticfl.core.model import Examples, Model
from agnosticfl.core.precision import model_in_precision
from agnosticfl.engines import padded_engine, steps_engine
from agnosticfl.engines.base import EngineBuilder
from agnosticfl.errors import BadInput
from agnosticfl.models import cifg, cnn, cox, hazard, linear, logistic, lstm, mlp, point
from agnosticfl.registry import MODELS
from tests.helpers.problems import assert_learns

N = 24


def points() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)


def labelled() -> dict[str, np.ndarray]:
    x = points()
    return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(np.int32)}


def numbered() -> dict[str, np.ndarray]:
    x = points()
    return {"x": x, "y": 2 * x[:, 0] - x[:, 1] + 3}


def survivors() -> dict[str, np.ndarray]:
    """Who has more of the first number goes sooner; every third is lost sight of."""
    x = points()
    time = np.exp(1 - x[:, 0])
    at_risk = np.zeros((N, 5, 3), np.float32)
    count = np.zeros(N, np.int32)
    for i in range(N):
        others = np.flatnonzero((np.arange(N) // 6 == i // 6) & (time > time[i]))
        at_risk[i, : len(others)], count[i] = x[others], len(others)
    y = np.stack([time, np.arange(N) % 3 > 0], axis=1).astype(np.float32)
    return {"x": x, "y": y, "at_risk": at_risk, "at_risk_count": count}


def pictures(height: int, width: int, *channels: int) -> dict[str, np.ndarray]:
    """The left half is bright in class 1 and dark in class 0."""
    y = (np.arange(N) % 2).astype(np.int32)
    x = np.random.default_rng(0).integers(0, 128, (N, height, width, *channels), np.uint8)
    x[y == 1, :, : width // 2] += 127
    return {"x": x, "y": y}


def sentences() -> dict[str, np.ndarray]:
    """1 bos, words that count up from 3 to 8, 2 eos, 0 pad."""
    rows = [[1, *range(first, 9), 2, *[0] * (first - 3)] for first in (3, 4, 5, 6)]
    return {"tokens": np.array(rows * (N // 4), np.int16)}


class Case(NamedTuple):
    """A model and examples it is for."""

    model: Model
    examples: dict[str, np.ndarray]
    outputs: str
    shape: tuple[int, ...]  # of what forward gives
    rate: float
    rounds: int = 20
    engine: EngineBuilder = padded_engine

    @property
    def metrics(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that are sums, and those that are exact."""
        if "y" not in self.examples:  # sentences, and the point
            return (("perplexity", "in_vocab_accuracy") if self.outputs == "tokens" else (), ())
        if self.examples["y"].ndim == 2:  # time and event
            return ((), ("c_index",))
        return (("accuracy",), ()) if self.outputs == "labels" else (("mae",), ("r2",))

    @property
    def arrays(self) -> Examples:
        return {name: jnp.asarray(array) for name, array in self.examples.items()}

    @property
    def params(self) -> Any:
        return some_params(self.model)


@functools.cache
def some_params(model: Model) -> Any:
    """Of the shapes of the first ones, which take a program of their own to make."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda s: rng.normal(scale=0.1, size=s.shape).astype(s.dtype), shapes)


LANGUAGE: dict[str, Any] = {"words": 6, "embedding": 8, "hidden": 16}
CASES = {
    "logistic": Case(logistic(3, 2), labelled(), "labels", (N, 2), 1.0),
    "linear": Case(linear(3), numbered(), "values", (N,), 0.1),
    "mlp of classes": Case(mlp(3, [8, 4], classes=2), labelled(), "labels", (N, 2), 1.0),
    "mlp of numbers": Case(mlp(3, [8], dropout=0.1), numbered(), "values", (N,), 0.03),
    "mlp without layers": Case(mlp(3, []), numbered(), "values", (N,), 0.1),
    "cnn": Case(cnn(2), pictures(28, 28), "labels", (N, 2), 0.03, 6, steps_engine),
    "cnn of colours": Case(
        cnn(2, height=7, width=10, channels=3),
        pictures(7, 10, 3),
        "labels",
        (N, 2),
        0.1,
        engine=steps_engine,
    ),
    "cnn at its smallest": Case(
        cnn(2, height=6, width=6), pictures(6, 6, 1), "labels", (N, 2), 0.1, engine=steps_engine
    ),
    "hazard": Case(hazard(3, edges=[1.0, 3.0]), survivors(), "values", (N,), 0.3),
    "cox": Case(cox(3), survivors(), "values", (N,), 0.3),
    "lstm": Case(lstm(**LANGUAGE), sentences(), "tokens", (N, 7, 10), 1.0, 30, steps_engine),
    "cifg": Case(cifg(**LANGUAGE), sentences(), "tokens", (N, 7, 10), 1.0, 30, steps_engine),
    "point": Case(point(start=9.0), {"x": points()[:, 0]}, "values", (N,), 0.1),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def test_no_model_is_missing():
    assert {name.partition(" ")[0] for name in CASES} == set(MODELS.names())
    assert set(models.__all__) <= set(MODELS.names())


@each_case
def test_a_loss_an_example(case: Case):
    losses = jax.eval_shape(
        case.model.per_example_loss, case.params, case.arrays, jax.random.key(1)
    )
    assert losses.shape == (N,)
    assert losses.dtype == jnp.float32


@each_case
def test_what_it_says_is_of_its_kind(case: Case):
    model = case.model
    assert model.forward is not None
    assert model.wanted is not None
    said, right = jax.jit(model.forward)(case.params, case.arrays), model.wanted(case.arrays)
    assert model.outputs == case.outputs
    assert (said.shape, said.dtype) == (case.shape, jnp.float32)
    pair = case.examples["y"].shape[1:] if "y" in case.examples else ()  # of time and event
    assert right.shape == (*case.shape[: 2 if case.outputs == "tokens" else 1], *pair)
    unlabelled = {name: array for name, array in case.arrays.items() if name != "y"}
    again = jax.jit(model.forward)(case.params, unlabelled)
    np.testing.assert_allclose(said, again, rtol=1e-4, atol=1e-5)  # no label, and no dropout


@each_case
def test_its_metrics_are_measured_on_what_it_says(case: Case):
    found: dict[str, Any] = {}  # JAX would bring its keys in another order
    measure = case.model.per_example_metrics
    jax.eval_shape(lambda *given: found.update(measure(*given)), case.params, case.arrays)
    assert (tuple(found), case.model.exact) == case.metrics
    assert tuple(name for name, _ in case.model.readings) == (*found, *case.model.exact)
    assert all(mean.total.shape == mean.weight.shape == (N,) for mean in found.values())


@each_case
def test_it_has_a_hash_and_every_precision(case: Case):
    assert hash(case.model) == hash(case.model)
    rounded = model_in_precision(case.model, "bf16")
    assert rounded.forward is not None
    assert rounded.forward is not case.model.forward
    assert jax.eval_shape(rounded.forward, case.params, case.arrays).shape == case.shape


@each_case
def test_it_fits_its_examples_and_no_others(case: Case):
    for need in case.model.needs:
        shape = case.examples[need.feature].shape[1:]
        assert need.fits(shape)
        assert not need.fits((*shape, 2))


# Of the convolutions the smallest learns here, and the others in `make test-all`: what takes long
# is the size of their images.
# Siblings of theirs learn in seconds.
SLOW = ("cnn", "cnn of colours", "cifg")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] * (name in SLOW))
        for name, case in CASES.items()
    ],
)
def test_it_learns(case: Case):
    data = from_arrays(case.examples, np.arange(N) // 6, np.arange(N) // 12)
    settings = {"engine": case.engine, "normalisation": "batch"}
    assert_learns(case.model, data, case.rounds, case.rate, batch_size=4, **settings)


# Two examples whose outputs are known: all parameters 0 but what is set here.

X, Y = jnp.array([[1.0, 2.0], [3.0, -1.0]]), jnp.array([1.0, 4.0])
W, B = [0.5, -0.25], 1.0
SAID = [0.5 * 1 - 0.25 * 2 + 1, 0.5 * 3 + 0.25 * 1 + 1]  # 1 and 2.75: errors 0 and −1.25


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1.25**2]),
        ({"loss": "absolute"}, [0, 1.25]),
        ({"loss": "huber"}, [0, 1 * (1.25 - 1 / 2)]),
        ({"loss": "huber", "huber_delta": 0.5}, [0, 0.5 * (1.25 - 0.5 / 2)]),
        ({"loss": "huber", "huber_delta": 2.0}, [0, 1.25**2 / 2]),
    ],
)
@pytest.mark.parametrize("make", [linear, lambda features, **options: mlp(features, [], **options)])
def test_the_losses_of_a_regression(make: Callable[..., Model], options: Any, expected: Any):
    model = make(2, **options)
    layer = {"kernel": jnp.array(W)[:, None], "bias": jnp.array([B])}
    params = {next(iter(model.init(jax.random.key(0)))): layer}
    assert model.forward is not None
    np.testing.assert_allclose(model.forward(params, {"x": X}), SAID)
    losses = model.per_example_loss(params, {"x": X, "y": Y}, None)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    whole = {"x": X, "y": Y.astype(jnp.int32)}
    np.testing.assert_array_equal(model.per_example_loss(params, whole, None), losses)


def test_a_linear_regression_starts_from_zeros():
    assert tree.norm(linear(3).init(jax.random.key(0))) == 0


def test_an_mlp_is_its_formula():
    model = mlp(2, [3], classes=2)
    params = some_params(model)
    one, two = params["dense1"], params["dense2"]
    hidden = np.maximum(0, X @ one["kernel"] + one["bias"][None])
    logits = hidden @ two["kernel"] + two["bias"][None]
    assert model.forward is not None
    np.testing.assert_allclose(model.forward(params, {"x": X}), logits, rtol=1e-5)
    sizes = (2 + 1) * 3 + (3 + 1) * 2
    assert tree.size(params) == sizes


def test_an_mlp_drops_out_in_training_only():
    model, examples = mlp(2, [64], dropout=0.5), {"x": jnp.ones((9, 2)), "y": jnp.zeros(9)}
    params, loss = some_params(model), jax.jit(model.per_example_loss)
    assert np.ptp(loss(params, examples, jax.random.key(1))) > 1e-3
    assert np.ptp(loss(params, examples, None)) < 1e-6


def test_a_cnn_leaves_out_a_row_and_a_column_without_a_partner():
    even, odd = cnn(2, height=8, width=10), cnn(2, height=9, width=11)
    params = some_params(even)
    x = jax.random.uniform(jax.random.key(1), (2, 9, 11))
    assert even.forward is not None
    assert odd.forward is not None
    smaller = jax.jit(even.forward)(params, {"x": x[:, :8, :10]})
    np.testing.assert_allclose(jax.jit(odd.forward)(params, {"x": x}), smaller, rtol=1e-5)
    sizes = [(9 + 1) * 32, (9 * 32 + 1) * 64, (2 * 3 * 64 + 1) * 128, (128 + 1) * 2]
    assert tree.size(params) == sum(sizes)


WEIGHTED: dict[str, Callable[..., Model]] = {
    "logistic": lambda **options: logistic(36, 3, **options),
    "mlp": lambda **options: mlp(36, [4], classes=3, **options),
    "cnn": lambda **options: cnn(3, height=6, width=6, **options),
}


@pytest.mark.parametrize("make", WEIGHTED.values(), ids=WEIGHTED.keys())
def test_class_weights_multiply_losses_and_leave_metrics(make: Callable[..., Model]):
    plain, weighted = make(), make(class_weights=[1, 0.5, 4])
    examples = {"x": jnp.ones((4, 6, 6)), "y": jnp.array([0, 1, 2, 2])}
    shapes = jax.eval_shape(plain.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    losses = jax.jit(weighted.per_example_loss)(params, examples, None)
    np.testing.assert_allclose(losses, np.log(3) * np.array([1, 0.5, 4, 4]), rtol=1e-6)
    for one, other in zip(
        *(jax.jit(m.per_example_metrics)(params, examples)["accuracy"] for m in (plain, weighted)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: logistic(3, 2, class_weights=[1.0]), r"class_weights of a classifier is \[1.0\]"),
        (lambda: logistic(3, 2, class_weights=[1, 0]), "must be 2 numbers above 0, one for each"),
        (lambda: logistic(3, 2, class_weights=[1, math.nan]), "must be 2 numbers above 0"),
        (lambda: logistic(0, 2), "features of a model is 0; it must be at least 1"),
        (lambda: linear(3, loss="cubic"), "unknown loss of a regression 'cubic'"),  # pyright: ignore[reportArgumentType]
        (lambda: linear(3, huber_delta=1.0), "huber_delta is 1.0, but loss is 'squared'; only"),
        (lambda: linear(3, loss="huber", huber_delta=0), "huber_delta is 0; it must be above 0"),
        (lambda: linear(3, metrics=["accuracy"]), "metric 'accuracy' is one of labels; the model"),
        (lambda: mlp(3, [0]), r"hidden of mlp is \[0\]; all must be above 0"),
        (lambda: mlp(3, dropout=1.0), "dropout of mlp is 1.0; it must be at least 0 and below 1"),
        (lambda: mlp(3, class_weights=[1]), "class_weights of mlp is set, but classes is left out"),
        (lambda: mlp(3, classes=2, loss="squared"), "loss of mlp is 'squared', but classes is 2"),
        (lambda: cnn(height=5), "height of cnn is 5; it must be at least 6"),
        (lambda: cnn(width=5), "width of cnn is 5; it must be at least 6"),
    ],
)
def test_what_cannot_be_built_is_said(make: Callable[[], Model], problem: str):
    with pytest.raises(BadInput, match=problem):
        make()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"name": "cnn", "height": 5}, "height of model 'cnn' is 5; it must be a whole number of"),
        ({"name": "mlp", "features": 3, "hidden": [4, 0]}, "hidden of model 'mlp' is"),
        (
            {"name": "logistic", "features": 3, "classes": 2, "class_weights": [1, -1]},
            "it must be a list of numbers above 0 or left out",
        ),
    ],
)
def test_a_task_s_options_are_checked_by_their_ranges(table: dict[str, Any], problem: str):
    with pytest.raises(BadInput, match=problem):
        MODELS.build(table, "model")
