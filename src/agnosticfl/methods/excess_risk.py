# SPDX-License-Identifier: Apache-2.0
"""Minimax regret (Agarwal and Zhang 2022): λ follows how far each domain is from its own best."""

import dataclasses

from agnosticfl.errors import check, choose
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import Algorithm, Parts, method
from agnosticfl.weights import chain, excess


@method(
    "excess-risk",
    title="Excess risk",
    paper="Agarwal and Zhang 2022",
    like="afa",
    deployable=True,
)
def excess_risk(parts: Parts, *, references: dict[str, float]) -> Algorithm:
    """AFA whose λ moves by L_i − L*_i, the excess over a reference loss of each domain.

    Args:
      references: domain -> L*_i, the loss of a model for it alone; `agnosticfl references` finds
        them by short runs of fedavg-target.
    """
    domains = parts.data.domains
    for name in references:
        choose(name, domains, "domain in the references of excess-risk")
    missing = [name for name in domains if name not in references]
    check(not missing, f"excess-risk: no reference loss is given for {', '.join(missing)}")
    rule = chain(excess([float(references[name]) for name in domains]), parts.rule)
    return agnostic_rounds(dataclasses.replace(parts, weight_rule=rule))
