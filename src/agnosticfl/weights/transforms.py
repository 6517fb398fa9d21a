# SPDX-License-Identifier: Apache-2.0
"""What can be done to the losses before a rule, and to λ after it. `chain` puts them together."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from msgspec import Meta

from agnosticfl.core import tree
from agnosticfl.core.weight_rule import DomainStats
from agnosticfl.errors import check
from agnosticfl.options import NotNegative, PositiveShare
from agnosticfl.registry import LOSS_TRANSFORMS, WEIGHT_TRANSFORMS
from agnosticfl.weights.chaining import LossTransform, WeightTransform
from agnosticfl.weights.simplex import project


class Seen(NamedTuple):
    """The loss that is remembered of each domain."""

    loss: Array  # [p]
    ever: Array  # [p] whether there was one


@LOSS_TRANSFORMS.add("normalised")
def normalised() -> LossTransform:
    """L_i ← L_i / mean_j |L_j| over the domains with a loss: γ_λ (or τ) then has no unit.

    Losses in other units, or of another model, give the same λ.
    """

    def update(state: tuple[()], stats: DomainStats) -> tuple[DomainStats, tuple[()]]:
        size = tree.mean(jnp.abs(stats.mean_loss), stats.has_loss)
        return stats._replace(mean_loss=tree.divide(stats.mean_loss, size)), state

    return LossTransform(lambda _: (), update)


@LOSS_TRANSFORMS.add("decaying")
def decaying() -> LossTransform:
    """L_i ← L_i / √t: the rate γ_λ / √t of the theory of online learning (Zinkevich 2003)."""

    def update(t: Array, stats: DomainStats) -> tuple[DomainStats, Array]:
        return stats._replace(mean_loss=stats.mean_loss / jnp.sqrt(t)), t + 1

    return LossTransform(lambda _: jnp.ones(()), update)


@LOSS_TRANSFORMS.add("optimistic")
def optimistic() -> LossTransform:
    """L_i ← 2 L_i(t) − L_i(t−1): the next loss as the last change foretells it.

    It damps the circles that λ and w turn around a saddle point (Rakhlin and Sridharan 2013;
    Daskalakis et al. 2018). t−1 is the last round that had the domain.
    """

    def update(last: Seen, stats: DomainStats) -> tuple[DomainStats, Seen]:
        present, loss = stats.domain_count > 0, stats.mean_loss
        change = jnp.where(present & last.ever, loss - last.loss, 0)
        remembered = Seen(jnp.where(present, loss, last.loss), last.ever | present)
        return stats._replace(mean_loss=loss + change), remembered

    return LossTransform(_nothing_seen, update)


@LOSS_TRANSFORMS.add("averaged_loss")
def averaged_loss(decay: Annotated[float, Meta(ge=0, lt=1)] = 0.9) -> LossTransform:
    """L_i ← L̄_i, with L̄_i ← decay · L̄_i + (1 − decay) L_i in each round that has the domain.

    Small cohorts make noisy losses; and a domain that is absent has its average here, not 0.

    Args:
      decay: from 0 (the last loss, as it was) to below 1.
    """
    check(0 <= decay < 1, f"decay is {decay}; it must be at least 0 and below 1")

    def update(mean: Seen, stats: DomainStats) -> tuple[DomainStats, Seen]:
        present = stats.domain_count > 0
        moved = decay * mean.loss + (1 - decay) * stats.mean_loss
        loss = jnp.where(mean.ever, moved, stats.mean_loss)
        mean = Seen(jnp.where(present, loss, mean.loss), mean.ever | present)
        return stats._replace(mean_loss=mean.loss, known=mean.ever), mean

    return LossTransform(_nothing_seen, update, fills_absent=True)


@LOSS_TRANSFORMS.add("adjusted")
def adjusted(constant: NotNegative) -> LossTransform:
    """L_i ← L_i + C / √n_i: group DRO's adjustment (Sagawa et al. 2020).

    A small group's training loss says less about its test loss, so it counts as worse. n_i is the
    mean number of the domain's examples in a round, over the window: all that the server knows.

    Args:
      constant: C, in units of the loss.
    """
    check(
        np.isfinite(constant) and constant >= 0,
        f"constant (C) is {constant}; it must be a number ≥ 0",
    )

    def update(state: tuple[()], stats: DomainStats) -> tuple[DomainStats, tuple[()]]:
        more = jnp.where(stats.has_loss, constant / jnp.sqrt(stats.mean_count), 0)
        return stats._replace(mean_loss=stats.mean_loss + more), state

    return LossTransform(lambda _: (), update)


def excess(references: Sequence[float]) -> LossTransform:
    """L_i ← L_i − L*_i, the excess over a reference loss: minimax regret (Agarwal and Zhang 2022).

    A domain that nobody can serve well (noisy labels, say) has a high reference, and does not take
    all weight. An absent domain has 0 as before. In tasks it is the method `excess-risk`, which
    takes the references by the domains' names.

    Args:
      references: L*_i, one for each domain, in their order: the loss of a model for it alone.
    """
    check(
        bool(np.all(np.isfinite(references))),
        f"reference losses are {list(references)}; they must be numbers",
    )
    own = jnp.asarray(references, jnp.float32)

    def init(weights: Array) -> tuple[()]:
        check(
            weights.size == own.size,
            f"{own.size} reference losses were given for {weights.size} domains",
        )
        return ()

    def update(state: tuple[()], stats: DomainStats) -> tuple[DomainStats, tuple[()]]:
        loss = jnp.where(stats.has_loss, stats.mean_loss - own, stats.mean_loss)
        return stats._replace(mean_loss=loss), state

    return LossTransform(init, update)


@WEIGHT_TRANSFORMS.add("minimum_weight")
def minimum_weight(lowest: PositiveShare) -> WeightTransform:
    """The λ nearest to the rule's with every λ_i ≥ `lowest`; the rule goes on from there.

    No domain is ever forgotten, and none needs long to come back.

    Args:
      lowest: at most 1/p, or p domains cannot sum to 1.
    """
    check(np.isfinite(lowest) and lowest > 0, f"minimum weight is {lowest}; it must be above 0")

    def init(weights: Array) -> tuple[()]:
        check(
            lowest * weights.size <= 1,
            f"minimum weight is {lowest} for {weights.size} domains; it must be at most"
            f" {1 / weights.size:.4g}, or they cannot sum to 1",
        )
        return ()

    def update(state: tuple[()], weights: Array) -> tuple[Array, tuple[()]]:
        mass = jnp.asarray(1 - lowest * weights.size, weights.dtype)
        return lowest + project(weights - lowest, mass, jnp.ones_like(weights, bool)), state

    return WeightTransform(init, update)


@WEIGHT_TRANSFORMS.add("capped")
def capped(highest: PositiveShare) -> WeightTransform:
    """The λ nearest to the rule's with every λ_i ≤ `highest`; the rule goes on from there.

    A domain whose losses are reported too high, by whomever, cannot take all of the training.

    Args:
      highest: at least 1/p, or p domains cannot sum to 1.
    """
    check(0 < highest <= 1, f"highest weight is {highest}; it must be above 0 and at most 1")

    def init(weights: Array) -> tuple[()]:
        check(
            highest * weights.size >= 1,
            f"highest weight is {highest} for {weights.size} domains; it must be at least"
            f" {1 / weights.size:.4g}, or they cannot sum to 1",
        )
        return ()

    def update(state: tuple[()], weights: Array) -> tuple[Array, tuple[()]]:
        mass = jnp.asarray(highest * weights.size - 1, weights.dtype)
        room = project(highest - weights, mass, jnp.ones_like(weights, bool))
        return jnp.maximum(highest - room, 0.0), state

    return WeightTransform(init, update)


@WEIGHT_TRANSFORMS.add("mixed")
def mixed(share: PositiveShare) -> WeightTransform:
    """λ ← (1 − ε) λ + ε λ_0, and the rule goes on from there (fixed share, Herbster and Warmuth
    1998, with λ_0 as the prior).

    Args:
      share: ε, above 0 and at most 1.
    """
    check(0 < share <= 1, f"share of the prior (ε) is {share}; it must be above 0 and at most 1")
    return WeightTransform(
        lambda weights: weights,
        lambda prior, weights: ((1 - share) * weights + share * prior, prior),
    )


@WEIGHT_TRANSFORMS.add("averaged")
def averaged() -> WeightTransform:
    """λ̄_t = Σ_{s≤t} λ_s / t, the average iterate; the rule itself goes on from λ_t.

    Averages converge where iterates circle. AFL's guarantee (Mohri et al. 2019) is about the mean
    of the models, too, each trained with its own λ_t: that is `mean_model` of a task. Here w is
    trained with λ̄.
    """

    def update(state: tuple[Array, Array], weights: Array) -> tuple[Array, tuple[Array, Array]]:
        mean, t = state
        mean = mean + (weights - mean) / t
        return mean, (mean, t + 1)

    return WeightTransform(lambda weights: (weights, jnp.ones(())), update, carried=False)


def _nothing_seen(weights: Array) -> Seen:
    return Seen(jnp.zeros_like(weights), jnp.zeros_like(weights, bool))
