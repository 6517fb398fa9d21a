# SPDX-License-Identifier: Apache-2.0
"""Geometry of the simplex {λ ≥ 0, Σ λ_i = 1}."""

import jax.numpy as jnp
from jax import Array


def project(values: Array, mass: Array, where: Array) -> Array:
    """The point of {x ≥ 0, Σ x_i = mass} nearest to `values` (Duchi et al. 2008).

    x_i = max(v_i − θ, 0), with θ found by sorting. Numbers for which `where` is false are left out,
    and come back as 0.
    """
    # Only numbers within `mass` of the largest can end above 0; others lie one below that, so that
    # no sum of huge numbers loses the small ones.
    values = values - jnp.max(values, where=where, initial=-jnp.inf)
    values = jnp.where(where, jnp.maximum(values, -mass - 1), -mass - 1)
    falling = -jnp.sort(-values)
    number = jnp.arange(1.0, values.size + 1)
    thresholds = (jnp.cumsum(falling) - mass) / number
    support = jnp.maximum(jnp.sum(falling > thresholds), 1)
    return jnp.maximum(values - thresholds[support - 1], 0.0)
