# SPDX-License-Identifier: Apache-2.0
"""Rules that move the domain weights λ: pairs `(init, update)` in the style of Optax.

A rule sees what a round told the server about the p domains (`DomainStats`: sums over clients,
divided) and returns the next λ. To add one, write a function like `exponentiated_gradient`.
"""

from agnosticfl.weights.ascent import exponentiated_gradient, projected_gradient
from agnosticfl.weights.chaining import LossTransform, WeightTransform, chain, from_table
from agnosticfl.weights.fair import prop_fair, semi_variance
from agnosticfl.weights.online import aaggff
from agnosticfl.weights.plain import fixed, proportional
from agnosticfl.weights.response import chi_squared, cvar, q_fair, tilted
from agnosticfl.weights.transforms import (
    adjusted,
    averaged,
    averaged_loss,
    capped,
    decaying,
    excess,
    minimum_weight,
    mixed,
    normalised,
    optimistic,
)

__all__ = [
    "LossTransform",
    "WeightTransform",
    "aaggff",
    "adjusted",
    "averaged",
    "averaged_loss",
    "capped",
    "chain",
    "chi_squared",
    "cvar",
    "decaying",
    "excess",
    "exponentiated_gradient",
    "fixed",
    "from_table",
    "minimum_weight",
    "mixed",
    "normalised",
    "optimistic",
    "projected_gradient",
    "prop_fair",
    "proportional",
    "q_fair",
    "semi_variance",
    "tilted",
]
