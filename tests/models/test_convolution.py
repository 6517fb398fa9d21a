# SPDX-License-Identifier: Apache-2.0
"""The CNN's convolution: every way to compute it, and which is taken where."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.stepping import step_by_step
from agnosticfl.models import cnn
from agnosticfl.models.helpers.convolutional import convolution, valid_convolution
from tests.helpers.images import images


def test_a_convolution_is_a_matrix_product():
    x = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    np.testing.assert_allclose(valid_convolution(x, kernel), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(convolution(x, kernel, (1, 1), "VALID", **options), wanted)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("trains", [False, True])
def test_clients_side_by_side_convolve_on_a_cpu_alone_and_only_to_measure(
    platform: str, trains: bool
):
    model = cnn(classes=2)

    def loss(params: Any, examples: Any) -> jax.Array:
        return model.per_example_loss(params, examples, jax.random.key(0)).sum()

    def several(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((3, *a.shape), a.dtype), tree)

    params = several(jax.eval_shape(model.init, jax.random.key(0)))
    function = jax.jit(jax.vmap(jax.grad(loss) if trains else loss))
    text = (
        function.trace(params, several(images(4))).lower(lowering_platforms=(platform,)).as_text()
    )
    assert ("convolution" in text) == (platform == "cpu" and not trains)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_step_that_the_host_calls_convolves_on_a_cpu_alone(platform: str):
    model = cnn(classes=2)

    def step(params: Any, examples: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return model.per_example_loss(params, examples, jax.random.key(0)).sum()

        with step_by_step():
            return jax.grad(loss)(params)

    params = jax.eval_shape(model.init, jax.random.key(0))
    traced = jax.jit(step).trace(params, images(4))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("convolution" in text) == (platform == "cpu")


def test_a_convolution_s_gradients_are_those_of_xla_s():
    x = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))

    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)

    def gradients(function: Any) -> Any:
        gradient = jax.grad(lambda *given: jnp.sum(jnp.sin(function(*given))), (0, 1))
        return jax.jit(gradient)(x, kernel)

    for actual, expected in zip(gradients(convolution), gradients(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
