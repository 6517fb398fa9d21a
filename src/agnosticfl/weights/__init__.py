# SPDX-License-Identifier: Apache-2.0
"""Rules that move the domain weights λ: pairs `(init, update)` in the style of Optax.

A rule sees what a round told the server about the p domains (`DomainStats`: sums over clients,
divided) and returns the next λ. To add one, write a function like `exponentiated_gradient`.
"""

from collections.abc import Callable

from agnosticfl.weights.ascent import exponentiated_gradient, projected_gradient
from agnosticfl.weights.plain import fixed, proportional
from agnosticfl.weights.response import chi_squared, cvar, q_fair, tilted
from agnosticfl.weights.seam import (
    DomainStats,
    LossTransform,
    WeightRule,
    WeightTransform,
    chain,
    check_domain_weights,
)
from agnosticfl.weights.transforms import (
    adjusted,
    averaged,
    averaged_loss,
    capped,
    decaying,
    minimum_weight,
    mixed,
    normalised,
    optimistic,
)

# What a task's [weight_rule] can name,
RULES: dict[str, Callable[..., WeightRule]] = {
    "exponentiated_gradient": exponentiated_gradient,
    "projected_gradient": projected_gradient,
    "tilted": tilted,
    "q_fair": q_fair,
    "chi_squared": chi_squared,
    "cvar": cvar,
    "proportional": proportional,
    "fixed": fixed,
}
# its `before`, what is done to the losses,
BEFORE: dict[str, Callable[..., LossTransform]] = {
    "normalised": normalised,
    "decaying": decaying,
    "optimistic": optimistic,
    "averaged_loss": averaged_loss,
    "adjusted": adjusted,
}
# and its `after`, what is done to λ.
AFTER: dict[str, Callable[..., WeightTransform]] = {
    "minimum_weight": minimum_weight,
    "capped": capped,
    "mixed": mixed,
    "averaged": averaged,
}

__all__ = [
    "AFTER",
    "BEFORE",
    "RULES",
    "DomainStats",
    "LossTransform",
    "WeightRule",
    "WeightTransform",
    "adjusted",
    "averaged",
    "averaged_loss",
    "capped",
    "chain",
    "check_domain_weights",
    "chi_squared",
    "cvar",
    "decaying",
    "exponentiated_gradient",
    "fixed",
    "minimum_weight",
    "mixed",
    "normalised",
    "optimistic",
    "projected_gradient",
    "proportional",
    "q_fair",
    "tilted",
]
