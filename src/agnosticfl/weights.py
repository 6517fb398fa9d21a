# SPDX-License-Identifier: Apache-2.0
"""Rules that move the domain weights λ: pairs `(init, update)` in the style of Optax.

A rule sees what a round told the server about the p domains (`DomainStats`: sums over clients,
divided) and returns the next λ. To add one, write a function like `exponentiated_gradient`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import logsumexp

from agnosticfl.errors import check, choose

LARGEST_STEP = 1e30  # of log λ in one round: with it no loss, however large, makes an infinity


class DomainStats(NamedTuple):
    """What a round tells a weight rule about each domain i."""

    mean_loss: Array  # [p] L_i at w_{t-1}, 0 where the domain was absent
    domain_count: Array  # [p] N_i of this round
    mean_count: Array  # [p] mean N_i over the window, this round in it


class WeightRule(NamedTuple):
    """How λ moves."""

    init: Callable[[Array], Any]  # λ_0 -> rule state
    update: Callable[[Any, DomainStats], tuple[Array, Any]]  # -> λ_t, rule state


def exponentiated_gradient(learning_rate: float, absent: str = "zero") -> WeightRule:
    """λ_i ← λ_i exp(γ_λ L_i) / Σ_j λ_j exp(γ_λ L_j): the paper's rule (Algorithm 1, line 12).

    The state is log λ, so a large γ_λ L_i does not overflow and a small λ_i never becomes an exact
    0 from which it could not return.

    Args:
      learning_rate: γ_λ.
      absent: what happens to a domain without examples in this round. `"zero"`: its L_i is 0, so
        its weight shrinks against those that have a loss (the paper's). `"hold"`: its λ_i stays,
        and the others share what they had before.
    """
    check(
        np.isfinite(learning_rate) and learning_rate >= 0,
        f"domain learning rate (γ_λ) is {learning_rate}; it must be a number ≥ 0",
    )
    choose(absent, ("zero", "hold"), "rule for absent domains")

    def update(log_weights: Array, stats: DomainStats) -> tuple[Array, Array]:
        moving = stats.domain_count > 0 if absent == "hold" else jnp.ones_like(log_weights, bool)
        step = jnp.clip(learning_rate * stats.mean_loss, -LARGEST_STEP, LARGEST_STEP)
        # Only differences matter: with the largest step at 0, equal losses of any size keep λ.
        step = step - jnp.max(step, where=moving, initial=-LARGEST_STEP)
        moved = jnp.where(moving, log_weights + step, log_weights)
        before, after = (logsumexp(x, where=moving) for x in (log_weights, moved))
        known = jnp.isfinite(
            after
        )  # not if all that move have weight 0: log 0 − log 0 is no number
        shift = jnp.where(known, before - jnp.where(known, after, 0), 0)
        moved = jnp.where(moving, moved + shift, moved)
        log_weights = moved - logsumexp(moved)
        return jnp.exp(log_weights), log_weights

    return WeightRule(jnp.log, update)


def proportional() -> WeightRule:
    """λ_i ∝ mean N_i, so that α = λ / mean N is the same for all examples: FedAvg's weights."""

    def update(state: tuple[()], stats: DomainStats) -> tuple[Array, tuple[()]]:
        return stats.mean_count / jnp.sum(stats.mean_count), state

    return WeightRule(lambda _: (), update)


def fixed() -> WeightRule:
    """λ stays λ_0."""
    return WeightRule(lambda weights: weights, lambda weights, _: (weights, weights))


def check_domain_weights(weights: Sequence[float] | np.ndarray, num_domains: int) -> np.ndarray:
    """Returns λ_0 as a float32 array, or says why it is no point of the simplex."""
    array = np.asarray(weights, np.float64)
    check(
        array.shape == (num_domains,),
        f"{array.size} domain weights were given for {num_domains} domains; give one for each",
    )
    for i, value in enumerate(array):
        check(
            bool(np.isfinite(value)) and value >= 0,
            f"domain weight {i} is {value}; weights must be numbers ≥ 0",
        )
    total = float(array.sum())
    check(abs(total - 1) < 1e-4, f"domain weights sum to {total:.6g}; they must sum to 1")
    return (array / total).astype(np.float32)


# What a task's [weight_rule] can name.
RULES: dict[str, Callable[..., WeightRule]] = {
    "exponentiated_gradient": exponentiated_gradient,
    "proportional": proportional,
    "fixed": fixed,
}
