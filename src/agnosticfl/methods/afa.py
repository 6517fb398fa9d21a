# SPDX-License-Identifier: Apache-2.0
"""Agnostic Federated Averaging (Ro et al. 2021): Algorithm 1, put together from its parts.

The algorithm itself is `core/algorithm1.py`, server and client; here it meets an engine, a channel
and the clients of a round. FedAvg and most rivals are the same rounds with other settings.
"""

from collections.abc import Callable
from typing import Any

import optax

from agnosticfl.core.algorithm1 import agnostic_round
from agnosticfl.core.channel import Channel, is_plain
from agnosticfl.core.contribution import SumOverClients
from agnosticfl.core.ledger import bytes_per_client, paper_bytes, times
from agnosticfl.core.precision import in_precision
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.engines.base import compile_block, remembered
from agnosticfl.methods.base import Algorithm, Parts, method
from agnosticfl.methods.heldout import heldout_rounds


@method(
    "afa",
    title="AFA",
    paper="Ro et al. 2021",
    deployable=True,
    paper_bytes=lambda state, clients: paper_bytes(state, clients, agnostic=True),
)
def agnostic_fedavg(parts: Parts) -> Algorithm:
    """Agnostic Federated Averaging: min over w of the largest mean loss of any domain."""
    return agnostic_rounds(parts)


def agnostic_rounds(parts: Parts) -> Algorithm:
    """The rounds of Algorithm 1; λ follows the clients who train, or held-out ones if given."""
    if parts.heldout is not None:
        return heldout_rounds(parts)
    engine = parts.engine_for(parts.work)
    seed = 0 if is_plain(parts.way) else parts.seed  # of the channel
    round = _round(
        engine.sum_over_clients, parts.server_steps, parts.rule, parts.way, seed, parts.precision
    )
    return Algorithm(
        parts.init,
        engine.cohort,
        engine.compile(round),
        parts.clients_per_round,
        lambda state: times(parts.clients_per_round, bytes_per_client(state, parts.way)),
        engine.choices,
        None if engine.blocks is None else compile_block(engine.blocks, round),
    )


@remembered
def _round(
    sum_over_clients: SumOverClients[Any],
    server_steps: optax.GradientTransformation,
    rule: WeightRule,
    way: Channel,
    seed: int,
    precision: str,
) -> Callable[..., Any]:
    round = agnostic_round(sum_over_clients, server_steps, rule, way, seed)
    return in_precision(round, precision)
