# SPDX-License-Identifier: Apache-2.0
"""What all classifiers have in common: inputs `x` and labels `y` in, loss and accuracy out."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from agnosticfl.errors import check
from agnosticfl.metrics import Mean, accuracy
from agnosticfl.model import Examples, Model, Need, from_nnx


def classifier(create: Callable[[nnx.Rngs], Any], x: Need, classes: int) -> Model:
    """A model trained by cross-entropy from an NNX module that takes `x` to logits.

    Args:
      x: what the module needs.
    """
    check(classes >= 1, f"classes of a classifier is {classes}; it must be at least 1")
    text = f"a whole number from 0 to {classes - 1} (classes = {classes})"
    y = Need("y", text, lambda shape: shape == (), classes)

    def loss(module: Any, examples: Examples) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(module(examples["x"]), examples["y"])

    def metrics(module: Any, examples: Examples) -> Mapping[str, Mean]:
        return {"accuracy": accuracy(module(examples["x"]), examples["y"])}

    return from_nnx(create, loss, metrics)._replace(needs=(x, y))


def decode(images: Array) -> Array:
    """Bytes become numbers from 0 to 1."""
    return images.astype(jnp.float32) / 255 if images.dtype == jnp.uint8 else images
