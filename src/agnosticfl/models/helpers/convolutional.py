# SPDX-License-Identifier: Apache-2.0
"""The network of the paper's EMNIST model, and how it convolves."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core import compiling
from agnosticfl.core.precision import precision_in_use, product
from agnosticfl.core.stepping import is_step_by_step
from agnosticfl.models.helpers.inputs import decode


class CNN(nnx.Module):
    """Images [n, height, width] or [n, height, width, channels] -> logits [n, classes]."""

    def __init__(self, shape: tuple[int, int, int], classes: int, rngs: nnx.Rngs):
        glorot = nnx.initializers.glorot_normal()
        conv = partial(nnx.Conv, kernel_size=(3, 3), padding="VALID", kernel_init=glorot, rngs=rngs)
        dense = partial(nnx.Linear, kernel_init=glorot, rngs=rngs)
        height, width, channels = self.shape = shape
        self.conv1 = conv(channels, 32, conv_general_dilated=convolution)
        self.conv2 = conv(32, 64, conv_general_dilated=convolution)
        self.dense1 = dense((height - 4) // 2 * ((width - 4) // 2) * 64, 128)
        self.dense2 = dense(128, classes)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, images: Array) -> Array:
        x = decode(images).reshape(-1, *self.shape)
        x = nnx.relu(self.conv1(x))
        kernel, bias = self.conv2.kernel, self.conv2.bias
        x = pooled_convolution(x, jnp.asarray(kernel), jnp.asarray(bias))
        x = self.dropout1(x.reshape(len(x), -1))
        x = self.dropout2(nnx.relu(self.dense1(x)))
        return self.dense2(x)


def pooled_convolution(x: Array, kernel: Array, bias: Array) -> Array:
    """The largest of each 2 × 2 of a convolution with bias and ReLU.

    Kernels of our own are for some NVIDIA cards; whatever they cannot do is done as elsewhere.
    """
    if compiling.on_hopper():
        from agnosticfl.models.helpers import pooled_convolution as by_kernel  # others need none

        if by_kernel.fits(kernel):
            on_card = by_kernel.on_card(precision_in_use())
            return jax.lax.platform_dependent(x, kernel, bias, cpu=convolved, default=on_card)
    return convolved(x, kernel, bias)


def convolved(x: Array, kernel: Array, bias: Array) -> Array:
    """The same, one after the other."""
    return max_pool(nnx.relu(convolution(x, kernel) + bias[None, None, None]))


def max_pool(x: Array) -> Array:
    """The largest of each 2 × 2; as a reshape, because its gradient is faster than a window's."""
    n, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def convolution(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    """The convolution that NNX asks for, computed in the way that is fast where it runs.

    Many clients at a time, each with its own kernel, make a grouped convolution, which is slow on
    accelerators; their matrix products are not. On a CPU XLA's own is the least work, but twenty
    times slower inside a compiled loop, where a step with its gradient is products.
    """
    on_cpu = xla_convolution if is_step_by_step() else direct_convolution
    return jax.lax.platform_dependent(x, kernel, cpu=on_cpu, default=valid_convolution)


def xla_convolution(x: Array, kernel: Array) -> Array:
    """A VALID convolution with stride 1, and its gradients, as the compiler has them."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


@jax.custom_vjp
def direct_convolution(x: Array, kernel: Array) -> Array:
    """`xla_convolution` where no gradient is asked for; `valid_convolution` where one is."""
    return xla_convolution(x, kernel)


direct_convolution.defvjp(
    lambda x, kernel: jax.vjp(valid_convolution, x, kernel), lambda pullback, d: pullback(d)
)


def valid_convolution(x: Array, kernel: Array) -> Array:
    """The same as one matrix product over all patches of the image."""
    down, right, _, channels = kernel.shape
    height, width = x.shape[1] - down + 1, x.shape[2] - right + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(down) for j in range(right)]
    return product(jnp.concatenate(shifted, axis=-1), kernel.reshape(-1, channels))
