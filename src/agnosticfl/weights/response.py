# SPDX-License-Identifier: Apache-2.0
"""Rules without a rate: λ answers the losses at once, and a penalty keeps it near a prior p.

Each is the λ on the simplex that maximises Σ_i λ_i L_i − R(λ, p), in closed form (`q_fair` with
log L for L). Its parameter goes from λ = p, the average that p stands for, to the worst domain
alone: the curve between utility and fairness.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import softmax

from agnosticfl.core import tree
from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.errors import check, choose
from agnosticfl.options import NotNegative, Positive, PositiveShare
from agnosticfl.registry import WEIGHT_RULES

LARGEST_LOSS = 1e30  # with it no difference of two losses is an infinity
LARGEST_GAP = 1e12  # between two losses, in units of τ: a domain so far behind has no weight
SMALLEST_PRIOR = 1e-12  # below this p_i counts as 0


Prior: TypeAlias = Literal["start", "counts"]


class Known(NamedTuple):
    """What a response carries: a domain that is absent from a round has its last loss."""

    start: Array  # [p] λ_0
    loss: Array  # [p] the last L_i seen
    seen: Array  # [p] whether there was one


def best_response(solve: Callable[[Array, Array], Array], prior: Prior) -> WeightRule:
    """λ_t = solve(p, L). A domain that no round had yet counts with the mean loss of the others.

    Args:
      solve: (p, L) -> λ.
      prior: what p is: `"start"`, λ_0 (uniform unless a task says otherwise), or `"counts"`, the
        domains' shares of the examples, which is the average that FedAvg serves.
    """
    choose(prior, get_args(Prior), "prior")

    def init(weights: Array) -> Known:
        return Known(weights, jnp.zeros_like(weights), jnp.zeros_like(weights, bool))

    def update(known: Known, stats: DomainStats) -> tuple[Array, Known]:
        present = stats.domain_count > 0
        known = Known(
            known.start,
            jnp.where(present, stats.mean_loss, known.loss),
            known.seen | present,
        )
        loss = jnp.where(known.seen, known.loss, tree.mean(known.loss, known.seen))
        p = known.start if prior == "start" else stats.mean_count / jnp.sum(stats.mean_count)
        return solve(p, loss), known

    return WeightRule(init, update)


@WEIGHT_RULES.add("tilted")
def tilted(temperature: Positive, prior: Prior = "start") -> WeightRule:
    """λ_i ∝ p_i exp(L_i / τ): TERM (Li et al. 2021, whose t is 1/τ), R = τ KL(λ ‖ p).

    Args:
      temperature: τ, in units of the loss. Large gives p, small the worst domain.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check_positive(temperature, "temperature (τ)")
    return best_response(lambda p, loss: softmax(jnp.log(p) + _gaps(loss, temperature)), prior)


@WEIGHT_RULES.add("q_fair")
def q_fair(q: NotNegative, prior: Prior = "start") -> WeightRule:
    """λ_i ∝ p_i L_i^q: q-FFL (Li et al. 2020) with domains in place of clients.

    It is the gradient's weight in Σ_i p_i L_i^{q+1} / (q + 1). A negative loss counts as 0.

    Args:
      q: 0 gives p, a large q the worst domain.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check(np.isfinite(q) and q >= 0, f"q is {q}; it must be a number ≥ 0")

    def solve(p: Array, loss: Array) -> Array:
        log_loss = jnp.log(jnp.maximum(loss, tree.SMALLEST))
        return softmax(jnp.log(p) + min(q, LARGEST_GAP) * (log_loss - jnp.max(log_loss)))

    return best_response(solve, prior)


@WEIGHT_RULES.add("chi_squared")
def chi_squared(temperature: Positive, prior: Prior = "start") -> WeightRule:
    """λ_i = p_i max(1 + (L_i − η) / τ, 0), with η such that they sum to 1.

    The χ²-regularised maximum, R = τ/2 Σ_i (λ_i − p_i)² / p_i (Namkoong and Duchi 2017): it
    penalises the variance of the losses, and drops domains that are served well.

    Args:
      temperature: τ, in units of the loss. Large gives p, small the worst domain.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check_positive(temperature, "temperature (τ)")

    def solve(p: Array, loss: Array) -> Array:
        p = jnp.where(p > SMALLEST_PRIOR, p, 0.0)
        # With x = (max L − η) / τ, λ_i = p_i (1 + gap_i + x)_+, and those with weight are the
        # domains of the largest losses: try 1, 2, … of them, and take as many as stay positive.
        gap = jnp.where(
            p > 0, _gaps(jnp.where(p > 0, loss, jnp.min(loss)), temperature), -LARGEST_GAP
        )
        order = jnp.argsort(-gap)
        mass, moment = jnp.cumsum(p[order]), jnp.cumsum((p * gap)[order])
        x = tree.divide(1 - mass - moment, mass)
        support = jnp.maximum(jnp.sum((1 + gap[order] + x > 0) & (p[order] > 0)), 1)
        return _normalised(p * jnp.maximum(1 + gap + x[support - 1], 0.0))

    return best_response(solve, prior)


@WEIGHT_RULES.add("cvar")
def cvar(level: PositiveShare, prior: Prior = "start") -> WeightRule:
    """The largest Σ_i λ_i L_i with λ_i ≤ p_i / θ: the mean loss of the worst share θ (CVaR).

    From the worst domain on, each gets its p_i / θ until nothing is left (Rockafellar and Uryasev
    2000). λ jumps when two domains change places; `averaged_loss()` before it calms that.

    Args:
      level: θ, from above 0 to 1. 1 gives p; at most the worst domain's p_i, that domain alone.
      prior: p: λ_0 (`"start"`) or the domains' shares of the examples (`"counts"`).
    """
    check(
        0 < level <= 1,
        f"level (θ) is {level}; it must be above 0 and at most 1,"
        " or the weights, at most p_i / θ each, cannot sum to 1",
    )

    def solve(p: Array, loss: Array) -> Array:
        # More than all there is would only overflow, and what is below SMALLEST counts as 0.
        room = jnp.minimum(p / max(level, tree.SMALLEST), 1.0)
        order = jnp.argsort(-loss)
        taken = jnp.cumsum(room[order]) - room[order]  # by the domains that are worse
        filled = jnp.clip(1 - taken, 0.0, room[order])
        return _normalised(jnp.zeros_like(p).at[order].set(filled))

    return best_response(solve, prior)


def check_positive(value: float, what: str) -> None:
    """Says so if an option is no number above 0."""
    check(np.isfinite(value) and value > 0, f"{what} is {value}; it must be a number above 0")


def bounded(loss: Array) -> Array:
    """Losses of which no difference is an infinity."""
    return jnp.clip(loss, -LARGEST_LOSS, LARGEST_LOSS)


def _gaps(loss: Array, temperature: float) -> Array:
    """(L_i − max L) / τ, from the differences: losses of any size make no infinity."""
    loss, unit = bounded(loss), min(max(temperature, tree.SMALLEST), LARGEST_LOSS)
    return jnp.maximum((loss - jnp.max(loss)) / unit, -LARGEST_GAP)


def _normalised(weights: Array) -> Array:
    return weights / jnp.sum(weights)
