# SPDX-License-Identifier: Apache-2.0
"""What all classifiers have in common: inputs `x` and labels `y` in, loss and accuracy out."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
import optax
from jax import Array

from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.errors import check
from agnosticfl.models.adapters import from_nnx
from agnosticfl.options import Positive

if TYPE_CHECKING:
    from flax import nnx  # not loaded before a network is made

DEFAULT_METRICS = ("accuracy",)
ClassWeights: TypeAlias = Sequence[Positive] | None


def classifier(
    create: "Callable[[nnx.Rngs], Any]",
    x: Need,
    classes: int,
    names: Sequence[str] = DEFAULT_METRICS,
    class_weights: ClassWeights = None,
) -> Model:
    """A model trained by cross-entropy from an NNX module that takes `x` to logits.

    Args:
      x: what the module needs.
      names: of its metrics.
      class_weights: for each class, what the losses of its examples are multiplied with.
    """
    check(
        1 <= classes < 2**31,  # labels are int32
        f"classes of a classifier is {classes}; it must be from 1 to {2**31 - 1}",
    )
    weighted = _weighted(class_weights, classes)
    text = f"a whole number from 0 to {classes - 1} (classes = {classes})"
    y = Need("y", text, lambda shape: shape == (), classes)

    def logits(module: Any, examples: Examples) -> Array:
        return module(examples["x"])

    def loss(module: Any, examples: Examples) -> Array:
        y = examples["y"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits(module, examples), y)
        return weighted(losses, y)

    return from_nnx(create, loss, forward=logits, metrics=names)._replace(needs=(x, y))


def _weighted(class_weights: ClassWeights, classes: int) -> Callable[[Array, Array], Array]:
    """What is done to the losses of examples with these labels."""
    if class_weights is None:
        return lambda losses, _: losses
    given = list(class_weights)
    check(
        len(given) == classes and all(0 < weight < math.inf for weight in given),
        f"class_weights of a classifier is {given}; it must be {classes} numbers above 0, one for"
        f" each class (classes = {classes})",
    )
    return lambda losses, y: losses * jnp.asarray(given, losses.dtype)[y]
