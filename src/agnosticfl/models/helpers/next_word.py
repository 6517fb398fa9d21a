# SPDX-License-Identifier: Apache-2.0
"""The last layer of a next-word model: its logits, and its losses with or without them."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from agnosticfl.core import compiling
from agnosticfl.core.metrics import cross_entropy
from agnosticfl.core.precision import half_in_use, product
from agnosticfl.core.tokens import PAD


class Narrow(NamedTuple):
    """What logits are made of."""

    x: Array  # [n, T, E], what the network comes to at each token
    w: Array  # [E, V]
    b: Array | None = None  # [V]; none for zeros


def logits_of(narrow: Narrow) -> Array:
    """[n, T, V]."""
    logits = product(narrow.x, narrow.w)
    return logits if narrow.b is None else logits + narrow.b.reshape((1, 1, -1))


def losses_of(narrow: Narrow, targets: Array) -> Array:
    """The cross-entropy of each token, [n, T]; that of padding may be anything finite.

    There are a hundred times as many logits as numbers in x. Some NVIDIA cards need not write them
    down; in float32 the kernels for that would be slow.
    """
    if compiling.on_hopper() and half_in_use() is not None:
        return _by_kernels(narrow, targets)
    return cross_entropy(logits_of(narrow), targets)


def _by_kernels(narrow: Narrow, targets: Array) -> Array:
    from agnosticfl.models.helpers import fused_loss as kernels  # here: others need no Pallas

    if not kernels.fits(narrow.w, targets.size):
        return cross_entropy(logits_of(narrow), targets)
    b = jnp.zeros(narrow.w.shape[1]) if narrow.b is None else narrow.b
    y = jnp.where(targets == PAD, kernels.NO_WORD, targets)
    given = narrow.x.reshape(-1, narrow.x.shape[-1]), narrow.w, b, y.reshape(-1)
    losses_of_lanes = kernels.fused_loss(kernels.ON_CARD, half_in_use())
    losses = losses_of_lanes(*(array[None] for array in given))  # of one
    return losses.reshape(targets.shape)
