# SPDX-License-Identifier: Apache-2.0
"""The paper's EMNIST model: a convolutional network with dropout for images of 28 × 28."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core.model import Model, Need
from agnosticfl.core.precision import product
from agnosticfl.models.helpers.classifier import DEFAULT_METRICS, classifier, decode
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("cnn")
def cnn(classes: AtLeastOne = 62, metrics: Sequence[str] = DEFAULT_METRICS) -> Model:
    """Two convolutions, pooling and two dense layers, trained by cross-entropy on the label `y`.

    With 62 classes, the paper's, it has 1,206,590 parameters. Images `x` are uint8, [n, 28, 28],
    and become numbers from 0 to 1 where the model runs; floats are taken as they are.

    Args:
      classes: K, how many labels there are.
      metrics: names of metrics of labels.
    """
    image = Need("x", "images of 28 × 28", lambda shape: shape == (28, 28))
    return classifier(lambda rngs: CNN(classes, rngs), image, classes, metrics)


class CNN(nnx.Module):
    """Images [n, 28, 28] -> logits [n, classes]."""

    def __init__(self, classes: int, rngs: nnx.Rngs):
        glorot = nnx.initializers.glorot_normal()
        conv = partial(nnx.Conv, kernel_size=(3, 3), padding="VALID", kernel_init=glorot, rngs=rngs)
        dense = partial(nnx.Linear, kernel_init=glorot, rngs=rngs)
        self.conv1 = conv(1, 32, conv_general_dilated=convolution)
        self.conv2 = conv(32, 64, conv_general_dilated=convolution)
        self.dense1 = dense(12 * 12 * 64, 128)
        self.dense2 = dense(128, classes)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, images: Array) -> Array:
        x = decode(images)[..., None]
        x = nnx.relu(self.conv1(x))
        x = max_pool(nnx.relu(self.conv2(x)))
        x = self.dropout1(x.reshape(len(x), -1))
        x = self.dropout2(nnx.relu(self.dense1(x)))
        return self.dense2(x)


def max_pool(x: Array) -> Array:
    """The largest of each 2 × 2; as a reshape, because its gradient is faster than a window's."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def convolution(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    """The convolution that NNX asks for, computed in the way that is fast where it runs.

    Many clients at a time, each with its own kernel, make a grouped convolution, which is slow on
    accelerators; their matrix products are not. On a CPU products are slower where only the result
    is wanted, but a step with its gradient takes little more than half the time with them.
    """
    return jax.lax.platform_dependent(x, kernel, cpu=direct_convolution, default=valid_convolution)


@jax.custom_vjp
def direct_convolution(x: Array, kernel: Array) -> Array:
    """XLA's own convolution where no gradient is asked for; `valid_convolution` where one is."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


direct_convolution.defvjp(
    lambda x, kernel: jax.vjp(valid_convolution, x, kernel), lambda pullback, d: pullback(d)
)


def valid_convolution(x: Array, kernel: Array) -> Array:
    """A VALID convolution with stride 1 as one matrix product over all patches of the image."""
    down, right, _, channels = kernel.shape
    height, width = x.shape[1] - down + 1, x.shape[2] - right + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(down) for j in range(right)]
    return product(jnp.concatenate(shifted, axis=-1), kernel.reshape(-1, channels))
