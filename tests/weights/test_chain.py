# SPDX-License-Identifier: Apache-2.0
"""What a task says of a rule, and what is refused."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.weights import (
    adjusted,
    averaged_loss,
    capped,
    chain,
    chi_squared,
    cvar,
    excess,
    exponentiated_gradient,
    fixed,
    from_table,
    minimum_weight,
    mixed,
    normalised,
    projected_gradient,
    prop_fair,
    q_fair,
    semi_variance,
    tilted,
)
from tests.weights.observed import stats, weights_after


def test_a_task_names_a_chain():
    table = {
        "name": "exponentiated_gradient",
        "learning_rate": 0.5,
        "before": ["normalised", {"name": "averaged_loss", "decay": 0.5}],
        "after": [{"name": "minimum_weight", "lowest": 0.1}],
    }
    same = chain(normalised(), averaged_loss(0.5), exponentiated_gradient(0.5), minimum_weight(0.1))
    rounds = [stats([9.0, 1.0]), stats([2.0, 3.0])]
    np.testing.assert_array_equal(
        weights_after(from_table(table), [0.5, 0.5], *rounds),
        weights_after(same, [0.5, 0.5], *rounds),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: projected_gradient(-1), r"γ_λ\) is -1; it must be a number ≥ 0"),
        (lambda: projected_gradient(1, "no"), "rule for absent domains 'no'"),  # type: ignore[arg-type]
        (lambda: tilted(0), r"temperature \(τ\) is 0; it must be a number above 0"),
        (lambda: tilted(1, "uniform"), "unknown prior 'uniform'"),  # type: ignore[arg-type]
        (lambda: q_fair(-0.5), "q is -0.5; it must be a number ≥ 0"),
        (lambda: chi_squared(float("nan")), r"temperature \(τ\) is nan"),
        (lambda: cvar(0), r"level \(θ\) is 0; it must be above 0 and at most 1"),
        (lambda: cvar(1.5), r"level \(θ\) is 1.5; .* cannot sum to 1"),
        (lambda: prop_fair(0), r"baseline \(M\) is 0; it must be a number above 0"),
        (lambda: prop_fair(1, margin=-1), r"margin \(ε\) is -1"),
        (lambda: semi_variance(-1), r"strength \(β\) is -1; it must be a number ≥ 0"),
        (lambda: excess([float("nan")]), r"reference losses are \[nan\]; they must be numbers"),
        (
            lambda: chain(excess([1.0]), fixed()).init(jnp.ones(2)),
            "1 reference losses were given for 2 domains",
        ),
        (lambda: averaged_loss(1.0), "decay is 1.0; it must be at least 0 and below 1"),
        (lambda: adjusted(-1), r"constant \(C\) is -1"),
        (lambda: mixed(0), r"share of the prior \(ε\) is 0"),
        (lambda: minimum_weight(0), "minimum weight is 0; it must be above 0"),
        (
            lambda: minimum_weight(0.3).init(jnp.ones(4)),
            "minimum weight is 0.3 for 4 domains; it must be at most 0.25, or they cannot sum",
        ),
        (lambda: capped(0), "highest weight is 0; it must be above 0 and at most 1"),
        (
            lambda: capped(0.2).init(jnp.ones(4)),
            "highest weight is 0.2 for 4 domains; it must be at least 0.25, or they cannot sum",
        ),
        (lambda: chain(normalised()), "a chain of LossTransform; it must be transforms of losses"),
        (lambda: chain(mixed(0.1), tilted(1)), "a chain of WeightTransform, WeightRule"),
        (lambda: from_table({"name": "tilted", "temperature": 1, "after": "mixed"}), "be a list"),
        (lambda: from_table({"name": "fixed", "before": [3]}), "weight_rule.before has 3"),
        (
            lambda: from_table({"name": "fixed", "after": ["normalised"]}),
            "unknown weight_rule.after 'normalised'",
        ),
        (
            lambda: from_table({"name": "tilted", "temperature": "hot"}),
            "temperature of weight_rule 'tilted' is 'hot'; it must be a number",
        ),
        (
            lambda: from_table({"name": "fixed", "after": ["mixed"]}),
            "weight_rule.after 'mixed' needs the option 'share'",
        ),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], Any], message: str):
    with pytest.raises(BadInput, match=message):
        make()
