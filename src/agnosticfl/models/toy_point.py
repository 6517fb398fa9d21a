# SPDX-License-Identifier: Apache-2.0
"""One number w, with loss (x − w)²: the paper's toy regression."""

from collections.abc import Sequence

import jax.numpy as jnp

from agnosticfl.core.model import Model, Need, from_functions
from agnosticfl.registry import MODELS


@MODELS.add("point")
def point(start: float = 0.0, metrics: Sequence[str] = ()) -> Model:
    """One number.

    Args:
      start: w_0.
      metrics: names of metrics of values: w is what is said of each x.
    """
    model = from_functions(
        init=lambda _: {"w": jnp.float32(start)},
        per_example_loss=lambda params, examples: jnp.square(examples["x"] - params["w"]),
        forward=lambda params, examples: jnp.full(examples["x"].shape, params["w"]),
        outputs="values",
        wanted=lambda examples: examples["x"],
        metrics=metrics,
    )
    return model._replace(needs=(Need("x", "one number", lambda shape: shape == ()),))
