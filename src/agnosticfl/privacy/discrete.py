# SPDX-License-Identifier: Apache-2.0
"""The discrete Gaussian, exactly: whole numbers x with probability ∝ exp(−x² / 2σ²).

All probabilities are compared as ratios of whole numbers with as many random bits as it takes, so
nothing is rounded: no attack can use gaps or tails of floating point. The building blocks are those
of Canonne, Kamath and Steinke (2020, algorithms 1 to 3); the proposal is Karney's (2016), which is
kept more often. σ is a whole number. NumPy only: a client of a federation needs no JAX for it.
"""

import functools
from collections.abc import Callable

import numpy as np

from agnosticfl.errors import check
from agnosticfl.privacy.entropy import Bits

# Then 2 σ² (k + 1) n is below 2^56, and with 8 binary digits more below 2^64, for k ≤ 12 and
# n ≤ 150; a row of n = 150 successes in `_bernoulli_exp_once` is less likely than 1 / 150!.
LARGEST_SIGMA = 2**22
CHUNK = 1 << 17  # numbers drawn at a time, so that their arrays stay in the processor's cache


def discrete_gaussian(sigma: int, size: int, bits: Bits) -> np.ndarray:
    """`size` independent draws, int64.

    |x| = k σ + j with j uniform in 0 … σ−1 and k ≥ 0 with probability ∝ exp(−k²/2); kept with
    probability exp(−j (2kσ + j) / 2σ²), and then P(x) ∝ exp(−(kσ + j)² / 2σ²). Zero has two signs,
    so one of them is not kept.
    """
    check(
        sigma == int(sigma) and 1 <= sigma <= LARGEST_SIGMA,
        f"sigma of a discrete Gaussian is {sigma}; it must be a whole number from 1 to 2^22",
    )
    found: list[np.ndarray] = []
    missing = size
    while missing > 0:
        kept = _candidates(int(sigma), min(CHUNK, int(1.45 * missing) + 64), bits)[:missing]
        found.append(kept)
        missing -= len(kept)
    return np.concatenate([np.zeros(0, np.int64), *found])


def _candidates(sigma: int, number: int, bits: Bits) -> np.ndarray:
    k = _steps(number, bits)
    j = uniform_below(sigma, number, bits)
    negative = bits(number) & 1 == 1
    kept = bernoulli_exp(j * (2 * sigma * k + j), np.uint64(2 * sigma * sigma), k + 1, bits)
    kept &= ~(negative & (k == 0) & (j == 0))
    size = (k * np.uint64(sigma) + j).astype(np.int64)[kept]
    return np.where(negative[kept], -size, size)


def uniform_below(bound: int, number: int, bits: Bits) -> np.ndarray:
    """[number] uint64, uniform in 0 … bound−1: as many bits as it has, drawn again if too large."""
    width = max((bound - 1).bit_length(), 1)
    mask = np.uint64((1 << width) - 1)
    drawn = _words(number, bits) & mask
    again = np.flatnonzero(drawn >= bound)
    while len(again):
        drawn[again] = _words(len(again), bits) & mask
        again = again[drawn[again] >= bound]
    return drawn


def bernoulli(above: np.ndarray, below: np.ndarray, bits: Bits) -> np.ndarray:
    """Whether, with probability above / below (from 0 to 1), element by element.

    A uniform number is compared with the ratio, 8 binary digits at a time, until they differ.
    """
    rest = above.copy()
    chosen = above >= below
    open_ = np.flatnonzero(~chosen)
    while len(open_):
        divisor = below[open_]
        shifted = rest[open_] << np.uint64(8)
        digit = shifted // divisor
        drawn = bits(len(open_))
        chosen[open_] = drawn < digit
        after = shifted - digit * divisor
        same = (drawn == digit) & (after > 0)  # with nothing left, the ratio is not above it
        rest[open_[same]] = after[same]
        open_ = open_[same]
    return chosen


def bernoulli_exp(above: np.ndarray, below: np.uint64, parts: np.ndarray, bits: Bits) -> np.ndarray:
    """Whether, with probability exp(−above / below), where above / (below · parts) is at most 1.

    As `parts` trials of exp(−above / (below · parts)) each, all of which must succeed.
    """
    chosen = np.ones(len(above), bool)
    divisor = below * parts
    for trial in range(int(parts.max(initial=0))):
        open_ = np.flatnonzero(chosen & (parts > trial))
        chosen[open_] = _bernoulli_exp_once(above[open_], divisor[open_], bits)
    return chosen


def _bernoulli_exp_once(above: np.ndarray, below: np.ndarray, bits: Bits) -> np.ndarray:
    """exp(−γ) for γ from 0 to 1: an even number of γ, γ/2, γ/3 … succeed in a row (von Neumann)."""
    even = np.ones(len(above), bool)
    going = np.arange(len(above))
    number = 1
    while len(going):
        won = bernoulli(above[going], below[going] * np.uint64(number), bits)
        going = going[won]
        even[going] ^= True
        number += 1
    return even


def _steps(number: int, bits: Bits) -> np.ndarray:
    """k ≥ 0 with probability ∝ exp(−k²/2), [number] uint64.

    64 random bits decide unless they are those of a border between two k; then more bits do.
    """
    drawn = _words(number, bits)
    borders, near = _coarse_borders()
    k = np.searchsorted(borders, drawn, side="right").astype(np.uint64)
    for place in np.flatnonzero(np.isin(drawn, near)):
        k[place] = _step_of(int(drawn[place]), lambda count: int.from_bytes(bits(count).tobytes()))
    return k


@functools.lru_cache(maxsize=1)
def _coarse_borders() -> tuple[np.ndarray, np.ndarray]:
    """The borders between two k to 64 bits, and the numbers of 64 bits that do not decide."""
    borders = [border >> 192 for border in _borders(256)]
    near = {border + step for border in borders for step in (-1, 0, 1)} | {2**64 - 1}
    return np.array(borders, np.uint64), np.array(sorted(n for n in near if n < 2**64), np.uint64)


def _step_of(drawn: int, more: Callable[[int], int]) -> int:
    """The k of a uniform number that begins with these 64 bits; `more(n)` gives n bytes of it."""
    precision = 64
    while True:
        guard = 4  # more than the borders' last digits can be wrong by
        borders = _borders(precision)
        k = sum(border <= drawn for border in borders)
        sure = all(abs(border - drawn) > guard for border in borders)
        if sure and drawn < 2**precision - guard - 1:
            return k
        drawn = drawn << 64 | more(8)
        precision += 64


@functools.lru_cache(maxsize=32)
def _borders(precision: int) -> tuple[int, ...]:
    """P(k < 1), P(k < 2), … in units of 2^−precision, each wrong by less than 4 of them.

    In whole numbers with 64 guard bits: exp(−n/2) by its series, whose terms are each cut by less
    than one unit in the last place.
    """
    one = 1 << (precision + 64)
    weights: list[int] = []
    k = 0
    while not weights or weights[-1] > 0:
        weights.append(_exp_of_minus_half(k * k, one))
        k += 1
    total, below, borders = sum(weights), 0, list[int]()
    for weight in weights:
        below += weight
        borders.append((below << precision) // total)
    return tuple(border for border in borders if border < (1 << precision))


def _exp_of_minus_half(number: int, one: int) -> int:
    """exp(−number / 2) in units of 1 / one: e^(1/2) from its series of positive terms, inverted."""
    term, root, n = one, 0, 0
    while term:
        root += term
        n += 1
        term //= 2 * n
    return one * one**number // root**number if number else one


def _words(number: int, bits: Bits) -> np.ndarray:
    return bits(8 * number).view(np.uint64).copy()
