# SPDX-License-Identifier: Apache-2.0
"""Rounds of an algorithm, and inputs with which other programs end in NaN."""

from typing import Any

import optax

from agnosticfl import exponentiated_gradient
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.methods.base import Algorithm
from tests.helpers.problems import federated


def rounds(algorithm: Algorithm, number: int) -> tuple[ServerState, RoundInfo]:
    """The state after so many rounds, and what the last of them reported."""
    assert number > 0
    state = algorithm.init()
    for t in range(1, number + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
    return state, info  # pyright: ignore[reportPossiblyUnboundVariable]


EMPTY = federated([[], [], []], [[], [], []], num_domains=2)
RARE = federated(  # EMNIST's writers: 500 of 3400 from the high school
    [[float(k % 7)] * 3 for k in range(3400)],
    [[int(k < 500)] * 3 for k in range(3400)],
    num_domains=2,
)

# What makes other programs end in NaN. Each case: data, options, rounds.
FAULTS: dict[str, tuple[FederatedData, dict[str, Any], int]] = {
    "a domain absent for the whole run": (
        federated([[1, 2], [3]], [[0, 0], [0]], num_domains=3), {}, 5,
    ),
    "a client without examples": (
        federated([[1, 2], [], [3]], [[0, 1], [], [1]], num_domains=2), {}, 5,
    ),
    "a round of empty clients": (EMPTY, {}, 5),
    "clients of domains without weight only": (
        federated([[1, 2], [3]], [[0, 0], [0]], num_domains=2),
        {"init_domain_weights": [0.0, 1.0]}, 5,
    ),
    "losses of 1e30": (federated([[1e15, 1], [2]], [[0, 1], [1]], num_domains=2), {}, 5),
    "losses that overflow in the sum": (
        federated([[1.8e19] * 2, [1.8e19] * 2], [[0, 0], [1, 1]], num_domains=2), {}, 5,
    ),
    "a rare domain, ten clients per round, r = 1": (RARE, {"clients_per_round": 10}, 60),
    "the same with hold": (
        RARE,
        {"clients_per_round": 10, "weight_rule": exponentiated_gradient(0.01, "hold")}, 60,
    ),
    "a server with momentum": (EMPTY, {"server_optimizer": optax.sgd(1.0, momentum=0.9)}, 5),
}  # fmt: skip
