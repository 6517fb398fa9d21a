# SPDX-License-Identifier: Apache-2.0
"""λ as the decision of an online portfolio: it follows the sum of all responses so far."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.nn import softmax

from agnosticfl.core import tree
from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.registry import WEIGHT_RULES

STEEPNESS = 3.0  # 2 + C with responses from 0 to C = 1: the bound on a gradient's numbers


class Portfolio(NamedTuple):
    """What AAggFF carries."""

    start: Array  # [p] λ_0
    total: Array  # [p] Σ_s r̆_i(s) / (1 + r̄(s))
    rounds: Array  # t
    present: Array  # [p] m_i, in how many of them domain i was present


@WEIGHT_RULES.add("aaggff")
def aaggff() -> WeightRule:
    """λ_i ∝ λ_{0,i} exp(√(log p / (t + 1)) / 3 · Σ_{s≤t} r̆_i / (1 + r̄)): AAggFF-D, of domains.

    Hahn et al. 2024, for many clients of whom some take part (its algorithm 3), with domains in
    their place. The response r_i = 1 − exp(−(L_i / mean L)²) has no unit, so there is no rate to
    choose; λ maximises the growth Σ log(1 + ⟨λ, r⟩), by the regularised leader. A domain that is
    absent has the mean response r̄, and one that is present r̆_i = r̄ + (r_i − r̄) t / m_i, with m_i
    of the t rounds so far (their doubly robust estimator; a domain's presence is counted here).
    """

    def init(weights: Array) -> Portfolio:
        nothing = jnp.zeros_like(weights)
        return Portfolio(weights, nothing, jnp.zeros(()), nothing)

    def update(own: Portfolio, stats: DomainStats) -> tuple[Array, Portfolio]:
        here = stats.domain_count > 0
        rounds, present = own.rounds + 1, own.present + here.astype(own.present.dtype)
        relative = tree.divide(stats.mean_loss, tree.mean(stats.mean_loss, here))
        response = 1 - jnp.exp(-jnp.square(jnp.maximum(relative, 0)))
        mean = tree.mean(response, here)
        more = jnp.where(here, (response - mean) * tree.divide(rounds, present), 0)
        total = own.total + (mean + more) / (1 + mean)
        rate = math.sqrt(math.log(total.size)) / (STEEPNESS * jnp.sqrt(rounds + 1))
        weights = softmax(jnp.log(own.start) + rate * total)
        return weights, Portfolio(own.start, total, rounds, present)

    return WeightRule(init, update)
