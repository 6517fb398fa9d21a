# SPDX-License-Identifier: Apache-2.0
"""Rivals that are Algorithm 1 with another rule for λ, or with fewer local steps."""

from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import Algorithm, Parts, method

# AFL's rule for λ, with its estimator of the loss of a domain that not every round has.
PROJECTED = {"name": "projected_gradient", "learning_rate": 0.01, "absent": "presence"}


@method(
    "afl",
    title="AFL",
    paper="Mohri et al. 2019",
    settings={
        "normalisation": "unbiased",
        "local_steps": 1,
        "weight_rule": PROJECTED,
    },
    like="fedavg",
    deployable=True,
)
def afl(parts: Parts) -> Algorithm:
    """Agnostic Federated Learning: one local step per round, λ by projected gradient."""
    return agnostic_rounds(parts)


@method(
    "term",
    title="TERM",
    paper="Li et al. 2021",
    settings={"weight_rule": {"name": "tilted", "temperature": 1.0, "prior": "counts"}},
    parameter=("τ", "weight_rule.temperature"),
    deployable=True,
)
def term(parts: Parts) -> Algorithm:
    """Tilted empirical risk minimisation, over domains."""
    return agnostic_rounds(parts)


@method(
    "qffl",
    title="q-FFL",
    paper="Li et al. 2020",
    settings={"weight_rule": {"name": "q_fair", "q": 1.0, "prior": "counts"}},
    parameter=("q", "weight_rule.q"),
    deployable=True,
)
def qffl(parts: Parts) -> Algorithm:
    """q-fair federated learning, with domains in the place of clients."""
    return agnostic_rounds(parts)


@method(
    "chi2",
    title="χ²",
    paper="Namkoong and Duchi 2017",
    settings={"weight_rule": {"name": "chi_squared", "temperature": 1.0, "prior": "counts"}},
    parameter=("τ", "weight_rule.temperature"),
    deployable=True,
)
def chi2(parts: Parts) -> Algorithm:
    """The χ²-regularised worst case over domains."""
    return agnostic_rounds(parts)


@method(
    "cvar",
    title="CVaR",
    paper="Rockafellar and Uryasev 2000",
    settings={
        "weight_rule": {
            "name": "cvar",
            "level": 0.5,
            "prior": "counts",
            "before": ["averaged_loss"],
        }
    },
    parameter=("θ", "weight_rule.level"),
    deployable=True,
)
def conditional_value_at_risk(parts: Parts) -> Algorithm:
    """The mean loss of the worst share θ of the examples' domains."""
    return agnostic_rounds(parts)


@method(
    "group-dro",
    title="Group DRO",
    paper="Sagawa et al. 2020",
    settings={"weight_rule": {"before": [{"name": "adjusted", "constant": 1.0}]}},
    deployable=True,
)
def group_dro(parts: Parts) -> Algorithm:
    """AFA whose losses are raised for small domains, which generalise worse."""
    return agnostic_rounds(parts)
