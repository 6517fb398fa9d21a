# SPDX-License-Identifier: Apache-2.0
"""What rounds of noised sums cost, and the noise that is found for a budget."""

import math

import numpy as np
import pytest
from scipy import stats

from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Budget, Charge, known_cohorts, off_lattice

dp_accounting = pytest.importorskip("dp_accounting")


def sampled_gaussian(rate: float) -> accounting.Accountant:
    """Without the rounding to whole numbers."""
    return accounting.sampled_gaussian(rate, lambda _: 1.0, lambda *_: 0.0)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (40.0, 100)])
def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism(noise: float, rounds: int):
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = 2 √T / z (Balle and Wang 2018)."""
    epsilon = sampled_gaussian(1.0)([Charge(noise, rounds)], 1e-5)
    mu = 2 * math.sqrt(rounds) / noise
    cdf = stats.norm.cdf
    delta = cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=0.01)


def test_with_sampling_epsilon_lies_between_two_known_bounds():
    """Not below that of Poisson sampling, not above the Rényi bound for fixed-size cohorts."""
    rate, noise, rounds, delta = 0.1, 2.0, 200, 1e-5
    epsilon = sampled_gaussian(rate)([Charge(noise, rounds)], delta)
    poisson = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise, sensitivity=2.0, sampling_prob=rate
    )
    assert poisson.self_compose(rounds).get_epsilon_for_delta(delta) < epsilon
    renyi = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gaussian = dp_accounting.GaussianDpEvent(noise / 2)
    renyi.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, gaussian), rounds)
    assert epsilon < renyi.get_epsilon(delta)
    assert epsilon < 0.3 * sampled_gaussian(1.0)([Charge(noise, rounds)], delta)


@pytest.mark.parametrize("accountant", [sampled_gaussian(0.1), known_cohorts(lambda _: 1.01)])
def test_the_noise_found_is_just_enough(accountant: accounting.Accountant):
    budget = Budget(3.0, 1e-5, accountant)
    noise = accounting.find_noise(budget, 50)

    def spent(z: float, rounds: int) -> float:
        return accounting.spent(budget, [Charge(z, rounds)])

    assert spent(noise, 50) <= 3.0 < spent(0.99 * noise, 50)
    assert accounting.rounds_within(budget, noise, 50) == 50
    fewer = accounting.rounds_within(budget, 0.8 * noise, 50)
    assert spent(0.8 * noise, fewer) <= 3.0 < spent(0.8 * noise, fewer + 1)
    # Rounds with other noise are composed: half of each kind costs something between the two.
    mixed = accounting.spent(budget, [Charge(noise, 25), Charge(2 * noise, 25)])
    assert spent(2 * noise, 50) < mixed < spent(noise, 50)
    left = accounting.find_noise(budget, 50, before=[Charge(noise, 20)])
    assert left > noise
    assert accounting.spent(budget, [Charge(noise, 20), Charge(left, 50)]) <= 3.0
    with pytest.raises(BadInput, match="50 rounds were charged already and have spent epsilon 3"):
        accounting.find_noise(budget, 1, before=[Charge(0.99 * noise, 50)])


def test_whole_numbers_cost_next_to_nothing():
    """A model of 1.4 million numbers, 1000 rounds, σ = 2^19 units: less than 10⁻⁶ of ε."""
    assert 0 < off_lattice(2**19, 1_400_000 * 1000) < 1e-6
    # The ratio of the two laws' probabilities, number by number.
    sigma, x = 30, np.arange(-150, 151)
    rounded = stats.norm.cdf(x + 0.5, scale=sigma) - stats.norm.cdf(x - 0.5, scale=sigma)
    discrete = np.exp(-(x**2) / (2 * sigma**2)) / np.exp(-(x**2) / (2 * sigma**2)).sum()
    exponent = (1 - x**2 / sigma**2) / (24 * sigma**2)
    np.testing.assert_allclose(np.log(discrete / rounded), exponent, atol=2e-6)
