# SPDX-License-Identifier: Apache-2.0
"""Kernels for the CNN's second convolution with ReLU and pooling, against the plain way."""

import re
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core import compiling
from agnosticfl.core.precision import PRECISIONS as NAMES
from agnosticfl.core.precision import in_precision
from agnosticfl.models import cnn
from agnosticfl.models.helpers.convolutional import convolved
from agnosticfl.models.helpers.pooled_convolution import (
    Kernel,
    Way,
    Ways,
    fits,
    pooled_convolution,
)
from agnosticfl.models.helpers.pooled_convolution_kernels import Blocks
from agnosticfl.models.helpers.split_factors import PRECISIONS, Precision
from tests.helpers.images import images

Three: TypeAlias = tuple[Blocks, Blocks, Blocks]  # of the result, d_x and d_w

LANES, IMAGES = 2, 3
# Pixels of w one by one, in rows and all written out; channels of d in pieces, and at once.
BLOCKS = [
    (Blocks(32, 4, 2, 1, 16), Blocks(32, 4, 2, 1, 16), Blocks(16, 4, 2, 3)),
    (Blocks(64, 4, 2, 3), Blocks(16, 4, 2, 3, 32), Blocks(32, 4, 2, 50)),
    (Blocks(16, 4, 1, 9), Blocks(32, 4, 1, 9, 32), Blocks(64, 4, 2, 1)),
]
TWO = PRECISIONS["float32"]
THREE = Precision(jnp.bfloat16, jax.lax.Precision.HIGHEST, 3)

SHAPES = [(8, 8), (9, 12), (7, 11)]  # odd: a row or a column has none to pool with


def given(height: int, width: int) -> tuple[jax.Array, ...]:
    """x, w and b of two clients, and d of what comes out."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.nn.relu(jax.random.normal(keys[0], (LANES, IMAGES, height, width, 16)))
    w = jax.random.normal(keys[1], (LANES, 3, 3, 16, 32))
    b = jax.random.normal(keys[2], (LANES, 32))
    shape = (LANES, IMAGES, (height - 2) // 2, (width - 2) // 2, 32)
    return x, w, b, jax.random.normal(keys[3], shape)


def all_of(way: Way, x: jax.Array, w: jax.Array, b: jax.Array, d: jax.Array) -> list[jax.Array]:
    """The result of two clients, and the gradients of x, w and b."""

    def of_one(x: jax.Array, w: jax.Array, b: jax.Array, d: jax.Array) -> Any:
        out, pullback = jax.vjp(way, x, w, b)
        return [out, *pullback(d)]

    return jax.jit(jax.vmap(of_one))(x, w, b, d)


def by_kernels(precision: str, blocks: Three = BLOCKS[0]) -> Way:
    def kernel(blocks: Blocks) -> Kernel:
        return Kernel(blocks, PRECISIONS[precision], interpret=True)

    return pooled_convolution(Ways(*map(kernel, blocks)))


@pytest.mark.parametrize(("blocks", "shape"), [*zip(BLOCKS, SHAPES, strict=True)])
def test_values_and_gradients_are_those_of_the_plain_way(blocks: Three, shape: tuple[int, int]):
    arrays = given(*shape)
    wanted = all_of(convolved, *arrays)
    for actual, expected in zip(
        all_of(by_kernels("float32", blocks), *arrays), wanted, strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_each_kernel_may_split_in_its_own_way():
    arrays = given(8, 10)
    forward, d_x, d_w = BLOCKS[0]
    ways = Ways(Kernel(forward, TWO, True), Kernel(d_x, THREE, True), Kernel(d_w, TWO, True))
    wanted = all_of(convolved, *arrays)
    for actual, expected in zip(all_of(pooled_convolution(ways), *arrays), wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_tie_is_divided_as_in_the_plain_way():
    x, w, b, d = given(8, 10)
    x = x.at[:, 0].set(1.0).at[:, 1, :, 4:].set(0.5)  # the ground of an image
    wanted = all_of(convolved, x, w, b, d)
    actuals = all_of(by_kernels("float32"), x, w, b, d)
    for actual, expected in zip(actuals, wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_what_relu_takes_away_has_no_gradient():
    x, w, b, d = given(8, 8)
    for gradient in all_of(by_kernels("float32"), x, w, b - 1000.0, d):
        assert not gradient.any()


@pytest.mark.parametrize("precision", [TWO, THREE])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_products_of_parts_are_as_exact_as_those_of_float32(precision: Precision, size: float):
    a, b = (jax.random.normal(jax.random.key(k), (288, 288)) for k in range(2))
    a = size * a
    exact = np.asarray(a, float) @ np.asarray(b, float)
    left, right = precision.split(a), precision.split(b)
    by_parts = precision.dot(left.parts, right.parts) * (left.scale * right.scale)
    assert abs(np.asarray(by_parts) - exact).max() < 1.5 * abs(np.asarray(a @ b) - exact).max()


@pytest.mark.parametrize(("precision", "kind"), [("bf16", jnp.bfloat16), ("tf32", jnp.float16)])
def test_factors_alone_are_rounded(precision: str, kind: Any):
    def rounded(a: jax.Array) -> jax.Array:
        return a.astype(kind).astype(jnp.float32)

    x, w, b, d = given(8, 8)
    wanted = all_of(convolved, rounded(x), rounded(w), b, rounded(d))[:3]
    for actual, expected in zip(all_of(by_kernels(precision), x, w, b, d), wanted, strict=False):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_number_is_the_sum_of_its_parts():
    x = jax.random.normal(jax.random.key(0), (1000,))
    parts = jax.jit(THREE.split)(x).parts
    np.testing.assert_array_equal(sum(part.astype(jnp.float32) for part in parts), x)


@pytest.mark.parametrize("size", [1e-30, 0.3, 65505.0, 1e30])
def test_two_parts_in_float16_have_the_bits_of_a_number_of_any_size(size: float):
    x = size * jax.random.normal(jax.random.key(0), (1000,))
    (large, small), scale = jax.jit(TWO.split)(x)
    both = np.asarray(large, float) + np.asarray(small, float) / TWO.apart
    np.testing.assert_allclose(both * float(scale), x, rtol=2**-22)


def test_zeros_are_split_into_zeros():
    assert not any(part.any() for part in TWO.split(jnp.zeros(3)).parts)


@pytest.mark.nan_input
@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_what_is_not_finite_leaves_other_examples_alone(strange: float):
    x, w, b, _ = (array[0] for array in given(8, 8))
    way = by_kernels("float32")
    actual = way(x.at[1, 4, 4, 0].set(strange), w, b)
    np.testing.assert_array_equal(
        jnp.delete(actual, 1, axis=0), jnp.delete(way(x, w, b), 1, axis=0)
    )
    assert not jnp.isfinite(actual[1]).all()


def test_kernels_are_for_sizes_that_a_card_can_do():
    assert fits(jnp.zeros((3, 3, 32, 64)))
    assert not fits(jnp.zeros((3, 3, 1, 32)))
    assert not fits(jnp.zeros((3, 3, 24, 64)))
    assert not fits(jnp.zeros((3, 3, 64, 64)))
    assert not fits(jnp.zeros((5, 5, 32, 64)))


@pytest.mark.parametrize("precision", NAMES)
@pytest.mark.parametrize("trains", [False, True])
def test_models_have_kernels_hopper(monkeypatch: pytest.MonkeyPatch, precision: str, trains: bool):
    monkeypatch.setattr(compiling, "on_hopper", lambda: True)
    model = cnn(classes=2)

    def loss(params: Any, examples: Any) -> jax.Array:
        return model.per_example_loss(params, examples, jax.random.key(0)).sum()

    def several(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((5, *a.shape), a.dtype), tree)

    params = several(jax.eval_shape(model.init, jax.random.key(0)))
    function = in_precision(jax.vmap(jax.grad(loss) if trains else loss), precision)
    traced = str(jax.make_jaxpr(function)(params, several(images(4))))
    assert traced.count("pallas_call") == (3 if trains else 1)


@pytest.mark.nan_input
@pytest.mark.parametrize("pixel", [(1, 1), (4, 5)])
def test_a_model_that_diverged_is_seen_to_have(pixel: tuple[int, int]):
    x, w, b, _ = (array[0] for array in given(8, 8))
    x = x.at[(0, *pixel, 3)].set(jnp.nan)
    way = by_kernels("bf16")
    expected = jnp.isnan(convolved(x, w, b))
    assert expected.any()
    np.testing.assert_array_equal(jnp.isnan(way(x, w, b)), expected)
    # The interpreter's maximum keeps NaN, a card's does not: there must be none of numbers.
    assert not re.search(r":f32\[[\d,]*\] = max ", str(jax.make_jaxpr(way)(x, w, b)))
