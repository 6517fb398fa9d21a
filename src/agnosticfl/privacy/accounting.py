# SPDX-License-Identifier: Apache-2.0
"""What rounds of noised sums cost in (ε, δ), for one client replaced by any other.

A round publishes Σ_k v_k + z · noise over a cohort of c clients, drawn without replacement from K,
with ‖v_k‖ ≤ 1. Replacing one client moves the sum by at most 2. The arithmetic of privacy losses is
that of `dp-accounting` (extra `dp`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.errors import BadInput, check, require


class Charge(NamedTuple):
    """Rounds whose noised sums may have been seen, all with the same noise."""

    noise: float  # z, the noise multiplier
    rounds: int


class Asked(NamedTuple):
    """Noised sums over all clients besides the rounds, paid for as a whole with the first round."""

    noise: float  # z / s: in units of a client's largest vector
    number: int
    beyond: float  # what the discrete Gaussian costs beyond a Gaussian


NOTHING_ASKED = Asked(1.0, 0, 0.0)

Accountant: TypeAlias = Callable[[Sequence[Charge], float], float]  # (charges, δ) -> ε

REPLACED = 2.0  # ‖v − v'‖ of two vectors of norm 1
GRID = 1e-3  # of the privacy loss; it is rounded so that ε is never too small
LARGEST_LOSS = 30.0  # of one round; what lies beyond counts as a breach
LARGEST_NOISE = 1e5
PRECISION = 1e-3  # of z, relative
# By how much rounding to whole numbers makes a vector of norm 1 longer at most in a federation: all
# its clients count with that, for sums of every kind.
ROUNDED = 1 / 128
UNLIKELY = 100.0  # e^−100 is how likely the discrete and the rounded Gaussian differ by more


class Budget(NamedTuple):
    """What a run may spend, and how it is counted."""

    epsilon: float
    delta: float
    accountant: Accountant


def check_budget(budget: Budget) -> Budget:
    """Returns `budget`, or says why it is none."""
    epsilon, delta = budget.epsilon, budget.delta
    check(0 < epsilon < np.inf, f"dp: epsilon is {epsilon}; it must be a number above 0")
    check(0 < delta < 1, f"dp: delta is {delta}; it must lie between 0 and 1")
    return budget


def spent(budget: Budget, charges: Sequence[Charge]) -> float:
    """The smallest ε that all these rounds together keep."""
    real = tuple(charge for charge in charges if charge.rounds > 0)
    return budget.accountant(real, budget.delta) if real else 0.0


def find_noise(budget: Budget, rounds: int, before: Sequence[Charge] = ()) -> float:
    """The smallest z, within `PRECISION`, with which `rounds` rounds stay within the budget.

    Args:
      before: what was charged already, and counts too.
    """

    def enough(noise: float) -> bool:
        return spent(budget, (*before, Charge(noise, rounds))) <= budget.epsilon

    check(
        spent(budget, before) < budget.epsilon,
        f"dp: {sum(charge.rounds for charge in before)} rounds were charged already and have spent"
        f" epsilon {budget.epsilon} at delta {budget.delta}: nothing is left for {rounds} more",
    )
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        check(
            high < LARGEST_NOISE,
            f"dp: no noise multiplier below {LARGEST_NOISE:.0f} keeps epsilon {budget.epsilon} at"
            f" delta {budget.delta} for {rounds} rounds",
        )
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def rounds_within(budget: Budget, noise: float, most: int) -> int:
    """How many rounds, at most `most`, noise multiplier `noise` lasts."""

    def enough(rounds: int) -> bool:
        return spent(budget, [Charge(noise, rounds)]) <= budget.epsilon

    if enough(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def check_rounds(budget: Budget, noise: float, wanted: int) -> None:
    """Refuses `wanted` rounds if they would go past the budget."""
    allowed = rounds_within(budget, noise, wanted)
    if allowed < wanted:
        raise BadInput(
            f"dp: {wanted} rounds are wanted, but noise multiplier {noise:.4g} keeps epsilon"
            f" {budget.epsilon} at delta {budget.delta} for {allowed} rounds only"
        )


def sampled_gaussian(
    rate: float,
    sensitivity: Callable[[float], float],
    lattice: Callable[[float, int], float],
    asked: Asked = NOTHING_ASKED,
) -> Accountant:
    """Discrete Gaussian noise on the sum of a cohort drawn without replacement, c / K = `rate` (q).

    With a Gaussian, the round's trade-off function is C_q(G_{2s/z}) of Dong, Roth and Su (2022,
    theorem 4.2), the one for fixed-size cohorts and a replaced client. As a privacy loss
    distribution: where the loss is positive it is that of ((1−q) N(0) + q N(2s), N(0)), where
    negative that of the reversed pair, and what is left of the mass has loss 0. Rounds are then
    composed numerically, rounded upwards.

    Args:
      sensitivity: z -> s, the largest norm of a client's vector after it was rounded to integers.
      lattice: (z, rounds) -> what the discrete Gaussian costs beyond a Gaussian; see `off_lattice`.
      asked: what is paid for besides.
    """

    def epsilon(charges: Sequence[Charge], delta: float) -> float:
        relative = tuple(Charge(z / sensitivity(z), rounds) for z, rounds in charges)
        beyond = sum(lattice(*charge) for charge in charges) + asked.beyond
        return _composed_epsilon(rate, relative, asked, delta) + beyond

    return epsilon


def one_release(
    sensitivity: Callable[[float], float],
    lattice: Callable[[float, int], float],
    asked: Asked = NOTHING_ASKED,
) -> Accountant:
    """One Gaussian mechanism whose answer comes round by round, as with correlated noise.

    It is paid for as a whole, however many of its rounds are played. Queries may follow from
    earlier answers (Denisov et al. 2022).

    Args:
      sensitivity: z -> the largest norm of one client's part of the whole answer.
      lattice, asked: as of `sampled_gaussian`.
    """
    whole = sampled_gaussian(1.0, sensitivity, lambda *_: 0.0, asked)

    def epsilon(charges: Sequence[Charge], delta: float) -> float:
        once = [charge._replace(rounds=1) for charge in charges]
        return whole(once, delta) + sum(lattice(*charge) for charge in charges)

    return epsilon


def off_lattice(sigma: float, numbers: int) -> float:
    """What `numbers` draws of a discrete Gaussian can cost in ε beyond those of a Gaussian.

    A Gaussian that is rounded to a whole number costs no more than the Gaussian: vectors are whole
    numbers, so rounding is post-processing. Its probabilities and those of the discrete Gaussian
    have the ratio exp((1 − x²/σ²) / 24σ²), but for terms in 1/σ⁴. Over n draws the exponents add up
    to at most (√(6nu) + 2u) / 24σ² with probability 1 − e^−u on either side (x² is the square of a
    sub-Gaussian number). Both neighbours' outcomes are exchanged, hence twice that.
    """
    return 2 * (math.sqrt(6 * numbers * UNLIKELY) + 2 * UNLIKELY) / (20 * sigma**2)


# A search for z takes seconds, and the runs of a comparison all ask for the same.
@functools.lru_cache(maxsize=4096)
def _composed_epsilon(
    rate: float, charges: tuple[Charge, ...], asked: Asked, delta: float
) -> float:
    """ε at δ of all these rounds, with noise in units of a client's largest vector."""
    total = [_loss_distribution(rate, noise).self_compose(rounds) for noise, rounds in charges]
    if asked.number:
        total.append(_loss_distribution(1.0, asked.noise).self_compose(asked.number))
    composed = functools.reduce(lambda one, other: one.compose(other), total)
    return composed.get_epsilon_for_delta(delta)


@functools.lru_cache(maxsize=16)
def _loss_distribution(rate: float, noise: float) -> Any:
    pmf = require("dp_accounting.pld.pld_pmf", "accounting of differential privacy", "dp")
    pld = require("dp_accounting.pld.privacy_loss_distribution", "accounting", "dp")
    largest = round(min(_largest_loss(rate, noise), LARGEST_LOSS) / GRID) + 1
    grid = np.arange(-largest, largest + 1)
    deltas = _hockey_stick(grid * GRID, rate, REPLACED / noise)
    dots = pmf.create_pmf_pessimistic_connect_dots(GRID, grid, deltas)
    return pld.PrivacyLossDistribution(dots)


def _largest_loss(rate: float, noise: float) -> float:
    """The loss that noise ten standard deviations out gives."""
    shift = REPLACED / noise
    return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + 10 * shift))


def _hockey_stick(epsilon: np.ndarray, rate: float, shift: float) -> np.ndarray:
    """sup over sets S of P(S) − e^ε P'(S), of one round, for each ε."""
    from scipy.stats import norm  # what dp-accounting itself needs

    size = np.abs(epsilon)
    # Where the loss of ((1−q) N(0) + q N(shift), N(0)) is |ε|, in standard deviations of the noise.
    place = np.log((np.expm1(size) + rate) / rate) / shift + shift / 2
    nothing, moved = norm.sf(place), norm.sf(place - shift)
    mixed = (1 - rate) * nothing + rate * moved
    above = mixed - np.exp(size) * nothing
    # D_{e^ε}(P ‖ P') = 1 − e^ε + e^ε D_{e^−ε}(P' ‖ P) for the reversed pair.
    below = -np.expm1(-size) + np.exp(-size) * above
    return np.where(epsilon >= 0, above, below).clip(0, 1)


def known_cohorts(sensitivity: Callable[[float], float]) -> Accountant:
    """Discrete Gaussian noise where whoever looks knows the cohort: no amplification by sampling.

    A round is ρ-zero-concentrated with ρ = (2 s / z)² / 2 (Canonne, Kamath and Steinke 2020).

    Args:
      sensitivity: z -> s, the largest norm of a client's vector after it was rounded to integers.
    """

    def epsilon(charges: Sequence[Charge], delta: float) -> float:
        rho = sum(n * concentrated(z, sensitivity(z)) for z, n in charges)
        return concentrated_epsilon(rho, delta)

    return epsilon


def concentrated(noise: float, sensitivity: float) -> float:
    """ρ of one sum with noise multiplier z, of vectors of norm s at most."""
    return (REPLACED * sensitivity / noise) ** 2 / 2


def concentrated_epsilon(rho: float, delta: float) -> float:
    """ε of what is ρ-zero-concentrated, at δ: the least over orders a of the Rényi divergence.

    That is aρ + log(1 − 1/a) − log(δa) / (a − 1) (Canonne, Kamath and Steinke 2020). It needs NumPy
    only: a client of a federation counts for itself.
    """
    if rho == 0:
        return 0.0
    a = np.concatenate([np.linspace(1.02, 10, 900), np.geomspace(10, 1e6, 800)])
    found = a * rho + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    return max(float(found.min()), 0.0)
