# SPDX-License-Identifier: Apache-2.0
"""Rivals and controls that are Algorithm 1 with another rule for λ, or with other local steps."""

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
    "fedminmax",
    title="FedMinMax",
    paper="Papadaki et al. 2022",
    settings={"normalisation": "client", "epochs": 1, "weight_rule": PROJECTED},
    deployable=True,
)
def fedminmax(parts: Parts) -> Algorithm:
    """AFL for groups of people: one step on all of a client's examples, λ by projected gradient.

    The step is taken batch by batch, with `client` normalisation: steps of |b| / n_k of it each,
    which add up to the whole one but for how far w moves on the way.
    """
    return agnostic_rounds(parts)


@method(
    "constant",
    title="Constant λ",
    paper="a control",
    settings={"weight_rule": {"name": "fixed"}, "weights_follow": "train"},
    like="afa",
    deployable=True,
)
def constant(parts: Parts) -> Algorithm:
    """AFA whose λ stays λ_0, 1/p for each domain: what is left when λ does not move.

    Everything else is Algorithm 1's, α = λ / mean N in it: domains count the same, however many
    examples they have.
    """
    return agnostic_rounds(parts)


@method(
    "aaggff",
    title="AAggFF",
    paper="Hahn et al. 2024",
    settings={"weight_rule": {"name": "aaggff"}},
    deployable=True,
)
def adaptive_aggregation(parts: Parts) -> Algorithm:
    """λ as an online portfolio over domains, without a rate."""
    return agnostic_rounds(parts)


@method(
    "propfair",
    title="PropFair",
    paper="Zhang et al. 2022",
    settings={"weight_rule": {"name": "prop_fair", "baseline": 5.0, "prior": "counts"}},
    parameter=("M", "weight_rule.baseline"),
    deployable=True,
)
def propfair(parts: Parts) -> Algorithm:
    """Proportional fairness between domains."""
    return agnostic_rounds(parts)


@method(
    "semi-vred",
    title="Semi-VRed",
    paper="Malekmohammadi and Yu 2023",
    settings={"weight_rule": {"name": "semi_variance", "strength": 1.0, "prior": "counts"}},
    parameter=("β", "weight_rule.strength"),
    deployable=True,
)
def semi_vred(parts: Parts) -> Algorithm:
    """The mean loss, and the semi-variance of the domains above it."""
    return agnostic_rounds(parts)


@method(
    "fgdro-kl",
    title="FGDRO-KL",
    paper="Guo and Yang 2024",
    settings={"weight_rule": {"name": "tilted", "temperature": 1.0, "before": ["averaged_loss"]}},
    parameter=("τ", "weight_rule.temperature"),
    deployable=True,
)
def fgdro_kl(parts: Parts) -> Algorithm:
    """The KL-regularised worst case over groups that count the same, by moving averages of losses.

    Their local estimators of the gradient (a momentum at every client) are left out.
    """
    return agnostic_rounds(parts)


@method(
    "fgdro-cvar",
    title="FGDRO-CVaR",
    paper="Guo and Yang 2024",
    settings={"weight_rule": {"name": "cvar", "level": 0.5, "before": ["averaged_loss"]}},
    parameter=("θ", "weight_rule.level"),
    deployable=True,
)
def fgdro_cvar(parts: Parts) -> Algorithm:
    """The mean of the largest losses among groups that count the same, by moving averages."""
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
    """q-fair federated learning, with domains in place of clients."""
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
