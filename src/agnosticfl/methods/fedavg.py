# SPDX-License-Identifier: Apache-2.0
"""FedAvg (McMahan et al. 2017) as the same rounds as AFA's: λ follows the counts, or one domain."""

import dataclasses

from agnosticfl.core.federated import only_domain
from agnosticfl.core.ledger import paper_bytes
from agnosticfl.core.state import ServerState
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import Algorithm, Parts, method


def plain_bytes(state: ServerState, clients: int) -> int:
    """By the paper's formula: models down and up, and nothing else."""
    return paper_bytes(state, clients, agnostic=False)


# FedAvg's rates are for the mean over a batch, and hold for all who take that mean.
UNIFORM = {
    "normalisation": "unbiased",
    "weight_rule": {"name": "proportional"},
    "weights_follow": "train",  # λ follows no loss at all
}


@method(
    "fedavg",
    title="FedAvg (uniform)",
    paper="McMahan et al. 2017",
    settings=UNIFORM,
    deployable=True,
    is_reference=True,
    paper_bytes=plain_bytes,
)
def fedavg(parts: Parts) -> Algorithm:
    """FedAvg (uniform): every example counts the same.

    λ follows the counts, so α is one constant, and with `unbiased` normalisation a local step is
    plain gradient descent on the batch's mean loss.
    """
    return agnostic_rounds(parts)


@method(
    "fedavg-target",
    title="FedAvg ({target})",
    paper="McMahan et al. 2017",
    settings={
        "normalisation": "unbiased",
        "weight_rule": {"name": "fixed"},
        "weights_follow": "train",
    },
    like="fedavg",
    paper_bytes=plain_bytes,
)
def fedavg_target(parts: Parts, *, target: str) -> Algorithm:
    """FedAvg (target-only): trains on the examples of one domain, of the clients that have any.

    Args:
      target: the name of the domain.
    """
    part = only_domain(parts.data, target)
    own = dataclasses.replace(
        parts,
        data=part,
        clients_per_round=min(parts.clients_per_round, part.num_clients),
        init_domain_weights=[float(name == target) for name in part.domains],
    )
    return agnostic_rounds(own)


@method(
    "fedprox",
    title="FedProx",
    paper="Li et al. 2020",
    settings={**UNIFORM, "client_optimizer": {"proximal": 0.01}},
    like="fedavg",
    parameter=("μ", "client_optimizer.proximal"),
    deployable=True,
)
def fedprox(parts: Parts) -> Algorithm:
    """FedAvg whose clients are held near the model that they got.

    From Python, chain `core.optimizers.proximal(μ)` before the client optimizer.
    """
    return agnostic_rounds(parts)
