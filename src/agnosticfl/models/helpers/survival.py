# SPDX-License-Identifier: Apache-2.0
"""What models of survival have in common: `y` is a time and whether it is an event's."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.models.adapters import from_nnx
from agnosticfl.models.helpers.inputs import row_of

DEFAULT_METRICS = ("c_index",)
TIME_AND_EVENT = Need(
    "y", "a time, and 1 for an event or 0 if it is known to be later", lambda shape: shape == (2,)
)


class Risk(nnx.Module):
    """Features [..., features] -> log risk [...], linear and from zeros on; more is sooner."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        zeros = nnx.initializers.zeros
        self.linear = nnx.Linear(features, 1, use_bias=False, kernel_init=zeros, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(x)[..., 0]


def survival(
    create: Callable[[nnx.Rngs], Any],
    loss: Callable[[Any, Array, Array, Examples], Array],
    features: int,
    names: Sequence[str],
    needs: Sequence[Need] = (),
) -> Model:
    """A model from a module with a `risk`.

    What it says of an example is minus the log risk, since a higher output means a longer time to
    the concordance index.

    Args:
      loss: `(module, time, event, examples) -> [n]`.
      needs: what it needs beside `x` and `y`.
    """

    def per_example_loss(module: Any, examples: Examples) -> Array:
        time, event = jnp.moveaxis(examples["y"].astype(jnp.float32), -1, 0)
        return loss(module, time, (event != 0).astype(jnp.float32), examples)

    def values(module: Any, examples: Examples) -> Array:
        return -module.risk(examples["x"])

    model = from_nnx(create, per_example_loss, forward=values, outputs="values", metrics=names)
    return model._replace(needs=(row_of(features), TIME_AND_EVENT, *needs))
