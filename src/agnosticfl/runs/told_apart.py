# SPDX-License-Identifier: Apache-2.0
"""Whether two settings can be told apart by what the same seeds gave with each."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def told_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the 95 % t-interval of the paired differences leaves 0 out.

    The same seed means the same cohorts and the same w_0, so differences say more than means do.
    One seed tells nothing.
    """
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(differences) < 2:
        return False
    reach = t_quantile(len(differences) - 1) * standard_error(differences)
    return abs(statistics.fmean(differences)) > reach


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def t_quantile(freedom: int) -> float:
    """t with P(|T| ≤ t) = 95 %, by halving: `_within` grows with t."""
    low, high = 0.0, 20.0  # 12.7 for one degree of freedom, less for all others
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| ≤ t) as a finite sum of cosines (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
