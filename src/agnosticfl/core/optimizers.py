# SPDX-License-Identifier: Apache-2.0
"""What is done to a client's gradient before its optimizer takes it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from agnosticfl.core import tree
from agnosticfl.core.model import Params
from agnosticfl.errors import check
from agnosticfl.options import NotNegative


def proximal(strength: NotNegative) -> optax.GradientTransformation:
    """Adds μ (w − w_{t-1}) to the gradient, before an optimizer: FedProx (Li et al. 2020).

    It is the gradient of μ/2 ‖w − w_{t-1}‖², which holds clients near the model that they got. A
    client's optimizer starts at w_{t-1}, so its first parameters are those to stay near.

    Args:
      strength: μ.
    """
    check(
        np.isfinite(strength) and strength >= 0,
        f"proximal strength (μ) is {strength}; it must be a number ≥ 0",
    )

    def update(updates: Params, state: Params, params: Params | None = None) -> Any:
        pull = tree.scale(jnp.float32(strength), tree.subtract(params, state))
        return tree.add(updates, pull), state

    return optax.GradientTransformation(lambda params: params, update)


def shrinking(strength: NotNegative) -> optax.GradientTransformation:
    """Adds ρ w to the gradient, that of ρ/2 ‖w‖²: less of a small domain is memorised.

    Args:
      strength: ρ.
    """
    check(
        np.isfinite(strength) and strength >= 0,
        f"l2 strength (ρ) is {strength}; it must be a number ≥ 0",
    )
    return optax.add_decayed_weights(strength)
