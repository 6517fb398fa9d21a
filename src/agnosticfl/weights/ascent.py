# SPDX-License-Identifier: Apache-2.0
"""Rules that move λ uphill by one step per round: mirror ascent on the losses of the domains."""

from typing import Literal, NamedTuple, TypeAlias, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import logsumexp

from agnosticfl.core import tree
from agnosticfl.core.tree import SMALLEST
from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.errors import check, choose
from agnosticfl.options import NotNegative
from agnosticfl.registry import WEIGHT_RULES
from agnosticfl.weights.chaining import LossTransform, chain
from agnosticfl.weights.simplex import project

LARGEST_STEP = 1e30  # of log λ in one round: with it no loss, however large, makes an infinity
Absent: TypeAlias = Literal["zero", "presence", "hold"]


class Presence(NamedTuple):
    """How often each domain had a loss."""

    rounds: Array  # t
    present: Array  # [p] m_i, in how many of them


@WEIGHT_RULES.add("exponentiated_gradient")
def exponentiated_gradient(learning_rate: NotNegative, absent: Absent = "zero") -> WeightRule:
    """λ_i ← λ_i exp(γ_λ L_i) / Σ_j λ_j exp(γ_λ L_j): the paper's rule (Algorithm 1, line 12).

    The state is log λ, so a large γ_λ L_i does not overflow and a small λ_i never becomes an exact
    0 from which it could not return.

    Args:
      learning_rate: γ_λ.
      absent: what happens to a domain without examples in this round. `"zero"`: its L_i is 0, so
        its weight shrinks against those that have a loss (the paper's). `"presence"`: the same, but
        a loss counts L_i t / m_i in a round that has the domain, m_i of the t so far: what is
        missed is made up for (AFL's and DRFA's estimator). `"hold"`: its λ_i stays, and the others
        share what they had before.
    """
    _check_rate(learning_rate)
    choose(absent, get_args(Absent), "rule for absent domains")

    def update(log_weights: Array, stats: DomainStats) -> tuple[Array, Array]:
        moving, step = _steps(learning_rate, absent, stats)
        moved = jnp.where(moving, log_weights + step, log_weights)
        before, after = (logsumexp(x, where=moving) for x in (log_weights, moved))
        known = jnp.isfinite(after)  # not if all that move have weight 0: log 0 − log 0
        shift = jnp.where(known, before - jnp.where(known, after, 0), 0)
        moved = jnp.where(moving, moved + shift, moved)
        log_weights = moved - logsumexp(moved)
        return jnp.exp(log_weights), log_weights

    def placed(log_weights: Array, weights: Array) -> Array:
        # A weight too small for its logarithm to be right has not been moved: keep what is known.
        return jnp.where(weights > SMALLEST, jnp.log(jnp.maximum(weights, SMALLEST)), log_weights)

    return _with_absent(absent, WeightRule(jnp.log, update, placed))


@WEIGHT_RULES.add("projected_gradient")
def projected_gradient(learning_rate: NotNegative, absent: Absent = "zero") -> WeightRule:
    """λ ← Π(λ + γ_λ L), Π the Euclidean projection onto the simplex: AFL (Mohri et al. 2019).

    Unlike `exponentiated_gradient` it gives a domain the weight 0 in finitely many rounds, and
    takes it back as easily. For the average iterate of AFL's theory, add `averaged()`.

    Args:
      learning_rate: γ_λ.
      absent: what happens to a domain without examples in this round, as in
        `exponentiated_gradient`.
    """
    _check_rate(learning_rate)
    choose(absent, get_args(Absent), "rule for absent domains")

    def update(weights: Array, stats: DomainStats) -> tuple[Array, Array]:
        moving, step = _steps(learning_rate, absent, stats)
        mass = jnp.sum(weights, where=moving)
        weights = jnp.where(moving, project(weights + step, mass, moving), weights)
        weights = weights / jnp.sum(weights)  # or rounding would add up over the rounds
        return weights, weights

    return _with_absent(
        absent, WeightRule(lambda weights: weights, update, lambda _, weights: weights)
    )


def _with_absent(absent: Absent, rule: WeightRule) -> WeightRule:
    """The rule, with losses divided by presence if that is asked for."""
    if absent == "presence":
        return chain(_by_presence(), rule)
    return rule._replace(sinks_absent=absent == "zero")


def _by_presence() -> LossTransform:
    """L_i ← L_i / (m_i / t), with m_i of the t rounds so far in which domain i was present.

    The share of rounds is all that the server can know of how likely a domain is: it holds for
    every way to draw cohorts, for a federation of real machines, and under a secure sum. A round in
    which the domain has a loss that was remembered (`averaged_loss`) is none that it missed.
    """

    def init(weights: Array) -> Presence:
        return Presence(jnp.zeros(()), jnp.zeros_like(weights))

    def update(seen: Presence, stats: DomainStats) -> tuple[DomainStats, Presence]:
        there = stats.has_loss.astype(seen.present.dtype)
        seen = Presence(seen.rounds + 1, seen.present + there)
        loss = stats.mean_loss * tree.divide(seen.rounds, seen.present)
        return stats._replace(mean_loss=loss), seen

    return LossTransform(init, update)


def _check_rate(learning_rate: float) -> None:
    check(
        isinstance(learning_rate, Array)  # data of a compiled round: nobody can look at it
        or (np.isfinite(learning_rate) and learning_rate >= 0),
        f"domain learning rate (γ_λ) is {learning_rate}; it must be a number ≥ 0",
    )


def _steps(learning_rate: float, absent: str, stats: DomainStats) -> tuple[Array, Array]:
    """Which domains move, and γ_λ L less its largest.

    Only differences matter: with the largest step at 0, equal losses of any size keep λ.
    """
    present = stats.domain_count > 0
    moving = present if absent == "hold" else jnp.ones_like(present)
    step = jnp.clip(learning_rate * stats.mean_loss, -LARGEST_STEP, LARGEST_STEP)
    return moving, step - jnp.max(step, where=moving, initial=-LARGEST_STEP)
