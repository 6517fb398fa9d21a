# SPDX-License-Identifier: Apache-2.0
"""Rules held to the papers' own way of writing them, where the two must coincide."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from agnosticfl.registry import METHODS
from agnosticfl.weights import aaggff, from_table, prop_fair, semi_variance, tilted
from tests.weights.observed import stats

LOSSES = ([1.0, 2.0, 4.0], [1.5, 1.0, 3.0], [0.5, 2.5, 2.0])


def softmax(values: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def test_aaggff_with_all_present_is_the_linearised_leader_of_the_paper():
    """Algorithm 3 with C = 1, its gradient with both terms: the second moves all i alike."""
    rule = aaggff()
    state, number, share = rule.init(jnp.full(3, 1 / 3)), 3, 1.0
    weights, gradients = np.full(number, 1 / number), np.zeros(number)
    for t, losses in enumerate(LOSSES, start=1):
        loss = np.array(losses)
        response = share * (1 - np.exp(-((loss / loss.mean()) ** 2)))
        mean = response.mean()
        robust = mean + (response - mean) / share
        bottom = 1 + weights.sum() * mean
        constant = mean * (weights @ (robust - mean)) / bottom**2
        gradients += -robust / bottom + constant
        weights = softmax(-gradients * np.sqrt(np.log(number)) / np.sqrt(t + 1) / (2 + share))
        ours, state = rule.update(state, stats(losses))
        np.testing.assert_allclose(ours, weights, rtol=1e-5)


def test_propfair_weighs_by_the_slope_of_the_authors_huber_loss():
    """−log(1 − L/M), and L/ε once L is within ε of M: by differences, M = 4, ε = 0.2."""
    base, epsilon, step = 4.0, 0.2, 1e-6

    def fair(loss: float) -> float:
        return loss / epsilon if base - loss < epsilon else -np.log(1 - loss / base)

    losses = [1.0, 3.0, 3.9]
    slopes = np.array([(fair(x + step) - fair(x - step)) / (2 * step) for x in losses])
    rule = prop_fair(base, epsilon)
    ours, _ = rule.update(rule.init(jnp.full(3, 1 / 3)), stats(losses))
    np.testing.assert_allclose(ours, slopes / slopes.sum(), rtol=1e-4)


def test_term_weighs_by_the_slope_of_the_tilted_risk():
    """1/t · log Σ_i p_i exp(t L_i), by differences, t = 1/τ = 2."""
    p, tilt, step = np.array([0.5, 0.3, 0.2]), 2.0, 1e-5

    def risk(losses: NDArray[Any]) -> float:
        return float(np.log(p @ np.exp(tilt * losses)) / tilt)

    losses = np.array([1.0, 2.0, 1.5])
    slopes = [
        (risk(losses + step * unit) - risk(losses - step * unit)) / (2 * step) for unit in np.eye(3)
    ]
    rule = tilted(1 / tilt)
    ours, _ = rule.update(rule.init(jnp.array(p)), stats(losses.tolist()))
    np.testing.assert_allclose(ours, slopes, rtol=1e-4)


def test_semi_vred_weighs_by_the_slope_of_mean_and_semi_variance():
    """Σ_i p_i L_i + β Σ_i p_i (L_i − L̄)_+², by differences."""
    p, beta, step = np.array([0.5, 0.3, 0.2]), 0.4, 1e-5

    def risk(losses: NDArray[Any]) -> float:
        above = np.maximum(losses - p @ losses, 0)
        return float(p @ losses + beta * p @ above**2)

    losses = np.array([1.0, 2.0, 1.5])
    slopes = [(risk(losses + d) - risk(losses - d)) / (2 * step) for d in step * np.eye(3)]
    rule = semi_variance(beta)
    ours, _ = rule.update(rule.init(jnp.array(p, jnp.float32)), stats(losses.tolist()))
    np.testing.assert_allclose(ours, slopes, rtol=1e-4)


def fgdro(name: str, **options: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """λ of the method after each round, and the running means of the losses until then."""
    rule = from_table({**METHODS.get(name).settings["weight_rule"], **options})
    state, means, found = rule.init(jnp.full(3, 1 / 3)), np.array(LOSSES[0]), []
    for losses in LOSSES:
        means = 0.9 * means + 0.1 * np.array(losses)
        ours, state = rule.update(state, stats(losses))
        found.append((np.asarray(ours), means))
    return found


def test_fgdro_kl_weighs_by_the_gradient_of_its_compositional_form():
    """g_i / g / N with g_i = exp(u_i / τ) and g their mean."""
    for ours, means in fgdro("fgdro-kl", temperature=0.5):
        own = np.exp(means / 0.5)
        np.testing.assert_allclose(ours, own / own.mean() / 3, rtol=1e-5)


def test_fgdro_cvar_has_the_value_of_its_best_threshold():
    """min_s Σ_i (u_i − s)_+ / K + s, whose best s is one of the u_i; K = 2 of N = 3."""
    for ours, means in fgdro("fgdro-cvar", level=2 / 3):
        values = [np.maximum(means - s, 0).sum() / 2 + s for s in means]
        np.testing.assert_allclose(ours @ means, min(values), rtol=1e-5)
        assert ours.max() <= 0.5 + 1e-6
