# SPDX-License-Identifier: Apache-2.0
"""A private client's vector, made in NumPy: `clipping.py` and `noise.py` for one that needs no JAX.

Bounds are fixed, as in every federation. A contribution becomes the same whole numbers as in JAX,
but for the last bits of float32 where it has to be clipped.
"""

import math
from collections.abc import Sequence

import numpy as np

from agnosticfl.channels.dp.clipping import (
    FIXED_REPORT_SHARES,
    FIXED_SHARES,
    MARGIN,
    ClipBounds,
)
from agnosticfl.channels.dp.noise import Scale
from agnosticfl.channels.in_numpy import Sums, norm


def whole_numbers(bounds: ClipBounds, scale: Scale, own: Sums) -> list[np.ndarray]:
    """One client's vector of norm at most 1, in units: its arrays, in the order of JAX's leaves.

    Args:
      own: finite numbers; a report has no update.
    """
    with np.errstate(over="ignore"):  # a norm that is infinite makes zeros
        return _whole_numbers(bounds, scale, own)


def _whole_numbers(bounds: ClipBounds, scale: Scale, own: Sums) -> list[np.ndarray]:
    shares = FIXED_SHARES if own.weighted_delta else FIXED_REPORT_SHARES
    update, loss, count = map(np.float32, bounds)
    size = np.asarray(own.domain_count.sum(dtype=np.float32))  # n_k
    mean_alpha = np.float32(min(abs(own.beta) / size, 1) if size > 0 else 0)
    # N^k, β^k and L^k shrink alike, so that a client of many examples keeps its mean loss.
    fewer = _factor([size], count)
    less = fewer * own.domain_loss
    shorter = _factor(own.weighted_delta, mean_alpha * update)
    segments = [
        (own.weighted_delta, update, shorter, shares.update),
        ([own.beta], count, _factor([own.beta], mean_alpha * count), shares.beta),
        ([less], loss, _factor([less], loss), shares.loss),
        ([own.domain_count], count, fewer, shares.count),
    ]
    found: list[np.ndarray] = []
    for parts, bound, factor, share in segments:
        scaled = np.float32(MARGIN * math.sqrt(share)) / bound
        found += [_in_units(scaled * (factor * part), scale) for part in parts]
    return [*found, np.zeros(len(bounds), np.int32)]  # fixed bounds follow nothing


def named_state(bounds: ClipBounds, scale: Scale) -> dict[str, np.ndarray]:
    """What the server carries of fixed bounds and their noise, by the names in a message."""
    named = {f"bounds.{name}": np.float32(b) for name, b in bounds._asdict().items()}
    named |= {"sigma": np.int32(scale.sigma), "units": np.float32(scale.units)}
    named |= {"within": np.zeros(len(bounds), np.float32), "rounds": np.int32(0)}
    return {name: np.asarray(value) for name, value in named.items()}


def _factor(parts: Sequence[np.ndarray], bound: np.float32) -> np.float32:
    """What makes the norm of all these numbers at most `bound`; at most 1."""
    size = norm(parts)
    return bound / size if size > bound else np.float32(1)


def _in_units(part: np.ndarray, scale: Scale) -> np.ndarray:
    return np.rint(part.astype(np.float32) * np.float32(scale.units)).astype(np.int32)
