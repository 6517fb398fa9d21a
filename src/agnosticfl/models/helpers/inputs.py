# SPDX-License-Identifier: Apache-2.0
"""Examples `x` as models take them: bytes become numbers, an image can be a row."""

import math

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.model import Need
from agnosticfl.errors import check


def row_of(features: int) -> Need:
    """An `x` of so many numbers; an image counts as the row of its pixels."""
    check(features >= 1, f"features of a model is {features}; it must be at least 1")
    text = f"{features} numbers (features = {features})"
    return Need("x", text, lambda shape: math.prod(shape) == features)


def rows(x: Array) -> Array:
    """Examples as rows of numbers, [n, features]."""
    return decode(x).reshape(len(x), -1)


def decode(images: Array) -> Array:
    """Bytes become numbers from 0 to 1."""
    return images.astype(jnp.float32) / 255 if images.dtype == jnp.uint8 else images
