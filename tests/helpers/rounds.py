# SPDX-License-Identifier: Apache-2.0
"""Rounds of an algorithm, and inputs with which other programs end in NaN."""

from typing import Any

import optax

from agnosticfl import exponentiated_gradient
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.methods.base import Algorithm
from tests.helpers.problems import SGD, federated


def rounds(algorithm: Algorithm, number: int) -> tuple[ServerState, RoundInfo]:
    """The state after so many rounds, and what the last of them reported."""
    assert number > 0
    state = algorithm.init()
    for t in range(1, number + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
    return state, info  # pyright: ignore[reportPossiblyUnboundVariable]


# A client for each domain, and one with both: loss (x − w)².
THREE = federated([[1.0, 2.0], [6.0], [1.0, 5.0]], [[0, 0], [1], [0, 1]], num_domains=2)


def of_three(**changes: Any) -> dict[str, Any]:
    """All of THREE, whole batches, γ_w = 0.1, and a window that holds the true counts."""
    standard: dict[str, Any] = {
        "clients_per_round": 3,
        "batch_size": 5,
        "client_optimizer": SGD,
        "init_domain_count": [3, 2],
    }
    return {**standard, **changes}


EMPTY = federated([[], [], []], [[], [], []], num_domains=2)
RARE = federated(  # EMNIST's writers: 500 of 3400 from the high school
    [[float(k % 7)] * 3 for k in range(3400)],
    [[int(k < 500)] * 3 for k in range(3400)],
    num_domains=2,
)

# What makes other programs end in NaN. Each case: data, options, rounds. Most have the same shapes,
# 4 examples of 3 clients in 2 domains, so that one program plays them all.
FAULTS: dict[str, tuple[FederatedData, dict[str, Any], int]] = {
    "a domain absent for the whole run": (
        federated([[1, 2], [3], [4]], [[0, 0], [0], [0]], num_domains=2), {}, 5,
    ),
    "a client without examples": (
        federated([[1, 2], [], [3, 4]], [[0, 1], [], [1, 1]], num_domains=2), {}, 5,
    ),
    "a round of empty clients": (EMPTY, {}, 5),
    "clients of domains without weight only": (
        federated([[1, 2], [3], [4]], [[0, 0], [0], [0]], num_domains=2),
        {"init_domain_weights": [0.0, 1.0]}, 5,
    ),
    "losses of 1e30": (
        federated([[1e15, 1], [2], [3]], [[0, 1], [1], [0]], num_domains=2), {}, 5,
    ),
    "losses that overflow in the sum": (
        federated([[1.8e19] * 2, [1.8e19], [1.8e19]], [[0, 0], [1], [1]], num_domains=2), {}, 5,
    ),
    "a rare domain, ten clients per round, r = 1": (RARE, {"clients_per_round": 10}, 60),
    "the same with hold": (
        RARE,
        {"clients_per_round": 10, "weight_rule": exponentiated_gradient(0.01, "hold")}, 60,
    ),
    "a server with momentum": (EMPTY, {"server_optimizer": optax.sgd(1.0, momentum=0.9)}, 5),
}  # fmt: skip
