# SPDX-License-Identifier: Apache-2.0
"""What all classifiers have in common: inputs `x` and labels `y` in, loss and accuracy out."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.errors import check
from agnosticfl.models.adapters import from_nnx

DEFAULT_METRICS = ("accuracy",)


def classifier(
    create: Callable[[nnx.Rngs], Any],
    x: Need,
    classes: int,
    names: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """A model trained by cross-entropy from an NNX module that takes `x` to logits.

    Args:
      x: what the module needs.
      names: of its metrics.
    """
    check(
        1 <= classes < 2**31,  # labels are int32
        f"classes of a classifier is {classes}; it must be from 1 to {2**31 - 1}",
    )
    text = f"a whole number from 0 to {classes - 1} (classes = {classes})"
    y = Need("y", text, lambda shape: shape == (), classes)

    def loss(module: Any, examples: Examples) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(module(examples["x"]), examples["y"])

    def logits(module: Any, examples: Examples) -> Array:
        return module(examples["x"])

    return from_nnx(create, loss, forward=logits, metrics=names)._replace(needs=(x, y))


def decode(images: Array) -> Array:
    """Bytes become numbers from 0 to 1."""
    return images.astype(jnp.float32) / 255 if images.dtype == jnp.uint8 else images
