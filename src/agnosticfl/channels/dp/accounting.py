# SPDX-License-Identifier: Apache-2.0
"""What rounds of noised sums cost in (ε, δ), for one client replaced by any other.

A round publishes Σ_k v_k + z · noise over a cohort of c clients, drawn without replacement from K,
with ‖v_k‖ ≤ 1. Replacing one client moves the sum by at most 2. The arithmetic of privacy losses is
that of `dp-accounting` (extra `dp`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.errors import BadInput, check, require

Accountant: TypeAlias = Callable[[float, int, float], float]  # (z, rounds, δ) -> ε

REPLACED = 2.0  # ‖v − v'‖ of two vectors of norm 1
GRID = 1e-3  # of the privacy loss; it is rounded so that ε is never too small
LARGEST_LOSS = 30.0  # of one round; what lies beyond counts as a breach
LARGEST_NOISE = 1e5
PRECISION = 1e-3  # of z, relative


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


def spent(budget: Budget, noise: float, rounds: int) -> float:
    """The smallest ε that `rounds` rounds with noise multiplier z = `noise` keep."""
    return 0.0 if rounds == 0 else budget.accountant(noise, rounds, budget.delta)


def find_noise(budget: Budget, rounds: int) -> float:
    """The smallest z, within `PRECISION`, with which `rounds` rounds stay within the budget."""
    low, high = 0.0, 1.0
    while spent(budget, high, rounds) > budget.epsilon:
        low, high = high, 2 * high
        check(
            high < LARGEST_NOISE,
            f"dp: no noise multiplier below {LARGEST_NOISE:.0f} keeps epsilon {budget.epsilon} at"
            f" delta {budget.delta} for {rounds} rounds",
        )
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        enough = spent(budget, middle, rounds) <= budget.epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def rounds_within(budget: Budget, noise: float, most: int) -> int:
    """How many rounds, at most `most`, noise multiplier `noise` lasts."""
    if spent(budget, noise, most) <= budget.epsilon:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        enough = spent(budget, noise, middle) <= budget.epsilon
        low, high = (middle, high) if enough else (low, middle)
    return low


def check_rounds(budget: Budget, noise: float, done: int, wanted: int) -> None:
    """Refuses rounds `done` + 1 … `wanted` if they would go past the budget."""
    allowed = rounds_within(budget, noise, wanted)
    if allowed < wanted:
        raise BadInput(
            f"dp: {done} rounds are done and {wanted} wanted, but noise multiplier {noise:.4g}"
            f" keeps epsilon {budget.epsilon} at delta {budget.delta} for {allowed} rounds only"
        )


def sampled_gaussian(rate: float) -> Accountant:
    """Gaussian noise on the sum of a cohort drawn without replacement, c / K = `rate` (q).

    The round's trade-off function is C_q(G_{2/z}) of Dong, Roth and Su (2022, theorem 4.2), the one
    for fixed-size cohorts and a replaced client. As a privacy loss distribution: where the loss is
    positive it is that of ((1−q) N(0) + q N(2), N(0)), where negative that of the reversed pair,
    and what is left of the mass has loss 0. Rounds are then composed numerically, rounded upwards.
    """

    def epsilon(noise: float, rounds: int, delta: float) -> float:
        return _loss_distribution(rate, noise).self_compose(rounds).get_epsilon_for_delta(delta)

    return epsilon


@functools.lru_cache(maxsize=8)
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


def discrete_gaussian(sensitivity: Callable[[float], float]) -> Accountant:
    """Discrete Gaussian noise, shares of it added by the clients themselves.

    The server chose the cohort and so knows it: no amplification by sampling. A round is
    ρ-zero-concentrated with ρ = (2 s / z)² / 2 (Canonne, Kamath and Steinke 2020).

    Args:
      sensitivity: z -> s, the largest norm of a client's vector after it was rounded to integers.
    """

    def epsilon(noise: float, rounds: int, delta: float) -> float:
        rdp = require("dp_accounting.rdp", "accounting of differential privacy", "dp")
        orders = np.concatenate([np.linspace(1.01, 10, 900), np.geomspace(10, 1e6, 800)])
        rho = rounds * (REPLACED * sensitivity(noise) / noise) ** 2 / 2
        return float(rdp.compute_epsilon(orders, orders * rho, delta)[0])

    return epsilon
