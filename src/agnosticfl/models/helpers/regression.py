# SPDX-License-Identifier: Apache-2.0
"""What all regressions have in common: inputs `x` and numbers `y` in, loss and metrics out."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.errors import check, choose
from agnosticfl.models.adapters import from_nnx

DEFAULT_METRICS = ("mae", "r2")
Loss: TypeAlias = Literal["squared", "absolute", "huber"]
LOSSES: dict[Loss, Callable[[Array, float], Array]] = {  # of ŷ − y, and δ
    "squared": lambda error, _: jnp.square(error),
    "absolute": lambda error, _: jnp.abs(error),
    "huber": lambda error, delta: optax.huber_loss(error, delta=delta),
}


def regression(
    create: Callable[[nnx.Rngs], Any],
    x: Need,
    loss: Loss = "squared",
    huber_delta: float | None = None,
    names: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """A model from an NNX module that takes `x` to one number for each example, [n].

    Args:
      x: what the module needs.
      loss: of an error e: e², |e|, or Huber's, e² / 2 up to δ and δ (|e| − δ / 2) from there on.
      huber_delta: δ; default 1.
      names: of its metrics.
    """
    of_error = LOSSES[choose(loss, LOSSES, "loss of a regression")]  # pyright: ignore[reportArgumentType]
    check(
        huber_delta is None or loss == "huber",
        f"huber_delta is {huber_delta}, but loss is {loss!r}; only 'huber' has one",
    )
    delta = 1.0 if huber_delta is None else huber_delta
    check(delta > 0, f"huber_delta is {delta}; it must be above 0")

    def values(module: Any, examples: Examples) -> Array:
        return module(examples["x"])

    def per_example_loss(module: Any, examples: Examples) -> Array:
        return of_error(values(module, examples) - target(examples), delta)

    model = from_nnx(
        create, per_example_loss, forward=values, outputs="values", wanted=target, metrics=names
    )
    y = Need("y", "one number (float32)", lambda shape: shape == ())
    return model._replace(needs=(x, y))


def target(examples: Examples) -> Array:
    """The numbers `y`; whole ones are taken too."""
    return examples["y"].astype(jnp.float32)
