# SPDX-License-Identifier: Apache-2.0
"""What a rule for λ is, and how it is put together with what happens before and after it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax import Array

from agnosticfl.errors import check


class DomainStats(NamedTuple):
    """What a round tells a weight rule about each domain i."""

    mean_loss: Array  # [p] L_i at w_{t-1}, 0 where the domain was absent
    domain_count: Array  # [p] N_i of this round
    mean_count: Array  # [p] mean N_i over the window, this round in it


class WeightRule(NamedTuple):
    """How λ moves."""

    init: Callable[[Array], Any]  # λ_0 -> rule state
    update: Callable[[Any, DomainStats], tuple[Array, Any]]  # -> λ_t, rule state
    # (rule state, λ) -> the state as if this λ had come out; as it was, if λ is no part of it
    placed: Callable[[Any, Array], Any] = lambda state, _: state


class LossTransform(NamedTuple):
    """What happens to the losses before a rule sees them."""

    init: Callable[[Array], Any]  # λ_0 -> state
    update: Callable[[Any, DomainStats], tuple[DomainStats, Any]]


class WeightTransform(NamedTuple):
    """What happens to λ after a rule gave it."""

    init: Callable[[Array], Any]  # λ_0 -> state
    update: Callable[[Any, Array], tuple[Array, Any]]  # state, λ -> λ, state
    carried: bool = True  # whether the rule goes on from the new λ, or from its own


Part: TypeAlias = LossTransform | WeightRule | WeightTransform


def chain(*parts: Part) -> WeightRule:
    """One rule from many parts, in the order in which they act.

    `chain(normalised(), exponentiated_gradient(0.1), minimum_weight(0.05))`: transforms of the
    losses, one rule, transforms of λ.
    """
    rank = {LossTransform: 0, WeightRule: 1, WeightTransform: 2}
    ranks = [rank[type(part)] for part in parts]
    check(
        ranks.count(1) == 1 and ranks == sorted(ranks),
        f"a chain of {', '.join(type(part).__name__ for part in parts) or 'nothing'};"
        " it must be transforms of losses, one rule, transforms of weights",
    )
    place = ranks.index(1)
    before: Any = parts[:place]
    rule: Any = parts[place]
    after: Any = parts[place + 1 :]

    def init(weights: Array) -> Any:
        return tuple(part.init(weights) for part in parts)

    def update(states: Any, stats: DomainStats) -> tuple[Array, Any]:
        new = list(states)
        for i, part in enumerate(before):
            stats, new[i] = part.update(states[i], stats)
        weights, new[place] = rule.update(states[place], stats)
        carried = True
        for i, part in enumerate(after, place + 1):
            weights, new[i] = part.update(states[i], weights)
            carried = carried and part.carried
            new[place] = rule.placed(new[place], weights) if carried else new[place]
        return weights, tuple(new)

    def placed(states: Any, weights: Array) -> Any:
        return (*states[:place], rule.placed(states[place], weights), *states[place + 1 :])

    return WeightRule(init, update, placed)


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
