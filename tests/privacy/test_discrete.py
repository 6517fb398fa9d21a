# SPDX-License-Identifier: Apache-2.0
"""The exact sampler: its building blocks bit by bit, its law by its probabilities."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from agnosticfl.errors import BadInput
from agnosticfl.privacy import discrete
from agnosticfl.privacy.discrete import bernoulli, bernoulli_exp, discrete_gaussian, uniform_below
from agnosticfl.privacy.entropy import Bits, from_system, stretched


def known_bits() -> Bits:
    return stretched(b"a test", "discrete")


def given(values: list[int]) -> Bits:
    """Bits that are these bytes, one after another."""
    rest = iter(values)
    return lambda number: np.array(list(itertools.islice(rest, number)), np.uint8)


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_a_ratio_is_compared_digit_by_digit():
    """1/3 = 0.555…₁₆: 84 wins at once, 86 loses at once, 85 (= 0x55) asks for another digit."""
    third = words(1, 1, 1, 1), words(3, 3, 3, 3)
    assert bernoulli(*third, given([84, 85, 85, 86, 84, 86])).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("above", "below"), [(0, 5), (5, 5), (3, 8), (255, 256)])
def test_a_ratio_of_eight_digits_is_exactly_right(above: int, below: int):
    """Of the 256 bytes that may come first, exactly above / below win."""
    wins = bernoulli(
        np.full(256, above, np.uint64), np.full(256, below, np.uint64), given([*range(256)])
    )
    assert wins.sum() == 256 * above / below


def test_large_ratios_do_not_overflow():
    below = 2 * discrete.LARGEST_SIGMA**2 * 13 * 150
    assert below < 2**56
    number = 20_000
    wins = bernoulli(
        np.full(number, below // 3, np.uint64), np.full(number, below, np.uint64), known_bits()
    )
    assert abs(wins.mean() - 1 / 3) < 0.015


@pytest.mark.parametrize(("above", "below", "parts"), [(1, 2, 1), (1, 1, 1), (5, 2, 3)])
def test_exponentials_have_their_probabilities(above: int, below: int, parts: int):
    number = 40_000
    wins = bernoulli_exp(
        np.full(number, above, np.uint64),
        np.uint64(below),
        np.full(number, parts, np.uint64),
        known_bits(),
    )
    chance = math.exp(-above / below)
    assert stats.binomtest(int(wins.sum()), number, chance).pvalue > 0.01


def test_uniform_numbers_are_drawn_again_until_they_fit():
    drawn = uniform_below(10, 50_000, known_bits())
    observed = np.bincount(drawn.astype(int), minlength=10)
    assert len(observed) == 10
    assert stats.chisquare(observed).pvalue > 0.01


@pytest.mark.parametrize("sigma", [1, 3, 20])
def test_the_discrete_gaussian_has_its_probabilities(sigma: int):
    number = 200_000
    draws = discrete_gaussian(sigma, number, known_bits())
    values = np.arange(-8 * sigma, 8 * sigma + 1)
    weight = np.exp(-(values**2) / (2 * sigma**2))
    expected = number * weight / weight.sum()
    observed = np.array([np.sum(draws == v) for v in values])
    tested = expected > 5
    statistic = np.sum((observed - expected)[tested] ** 2 / expected[tested])
    assert stats.chi2.sf(statistic, tested.sum() - 1) > 0.01


def test_a_wide_one_is_like_a_normal_one():
    sigma = discrete.LARGEST_SIGMA
    draws = discrete_gaussian(sigma, 200_000, known_bits())
    assert stats.kstest(draws / sigma, "norm").pvalue > 0.01
    assert stats.kstest(draws[:100_000], draws[100_000:]).pvalue > 0.01


def test_a_number_at_a_border_gets_more_digits():
    """The first border is P(k = 0) = 1 / Σ exp(−k²/2): its own digits and then less or more."""
    digits = discrete._borders(256)[0]
    first = digits >> 192
    assert first / 2**64 == pytest.approx(1 / sum(math.exp(-(k**2) / 2) for k in range(12)))
    assert first in discrete._coarse_borders()[1]
    for rest, k in ((0, 0), (2**64 - 1, 1)):
        assert discrete._step_of(first, lambda _, rest=rest: rest) == k
    # Twice the border's own digits, then 0: below it, and known only from the third word on.
    own = iter([digits >> 128 & (2**64 - 1), digits >> 64 & (2**64 - 1), 0])
    assert discrete._step_of(first, lambda _: next(own)) == 0


def test_the_systems_bits_give_other_numbers_every_time():
    one, other = (discrete_gaussian(1000, 50, from_system) for _ in range(2))
    assert np.any(one != other)


@pytest.mark.parametrize("sigma", [0, -1, 2.5, discrete.LARGEST_SIGMA + 1])
def test_other_widths_are_refused(sigma: float):
    with pytest.raises(BadInput, match="must be a whole number from 1"):
        discrete_gaussian(sigma, 1, known_bits())  # type: ignore[arg-type]
