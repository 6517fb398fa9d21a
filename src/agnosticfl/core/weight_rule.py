# SPDX-License-Identifier: Apache-2.0
"""What a rule for the domain weights λ is: a pair `(init, update)`, and what it is told."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from jax import Array

from agnosticfl.core.tree import PyTree
from agnosticfl.errors import check

RuleState: TypeAlias = PyTree  # what a rule carries from round to round


class DomainStats(NamedTuple):
    """What a round tells a weight rule about each domain i."""

    mean_loss: Array  # [p] L_i at w_{t-1}, 0 where the domain was absent
    domain_count: Array  # [p] N_i of this round
    mean_count: Array  # [p] mean N_i over the window, this round in it
    # [p] whether L_i is a loss, measured or remembered; None: where N_i > 0
    known: Array | None = None

    @property
    def has_loss(self) -> Array:
        """[p] whether L_i is a loss, and not the 0 of a domain of which nothing is known."""
        return self.domain_count > 0 if self.known is None else self.known


class UpdateWeights(Protocol):
    """λ_t and the rule's next state."""

    def __call__(self, state: RuleState, stats: DomainStats, /) -> tuple[Array, RuleState]: ...


class WeightRule(NamedTuple):
    """How λ moves."""

    init: Callable[[Array], RuleState]  # from λ_0
    update: UpdateWeights
    # (state, λ) -> the state as if this λ had come out; as it was, if λ is no part of it
    placed: Callable[[RuleState, Array], RuleState] = lambda state, _: state
    follows_losses: bool = True  # whether λ moves by what clients report at all
    sinks_absent: bool = False  # whether a domain loses weight in a round that it is absent from
    first: Callable[[Array, Array], Array] = lambda weights, _: (
        weights
    )  # (λ_0, N_0) -> λ of round 1


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
