# SPDX-License-Identifier: Apache-2.0
"""One number w, with loss (x − w)²: the paper's toy regression."""

import jax.numpy as jnp

from agnosticfl.core.model import Model, Need, from_functions
from agnosticfl.registry import MODELS


@MODELS.add("point")
def point(start: float = 0.0) -> Model:
    """One number.

    Args:
      start: w_0.
    """
    model = from_functions(
        init=lambda _: {"w": jnp.float32(start)},
        per_example_loss=lambda params, examples: jnp.square(examples["x"] - params["w"]),
    )
    return model._replace(needs=(Need("x", "one number", lambda shape: shape == ()),))
