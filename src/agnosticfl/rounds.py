# SPDX-License-Identifier: Apache-2.0
"""What a federated algorithm is, to those who make one and to those who run it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import optax
from jax import Array

from agnosticfl.channel import PLAIN, Channel, Report
from agnosticfl.client import ClientWork
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine import EngineBuilder
from agnosticfl.ledger import Bytes
from agnosticfl.sampling import Sampler
from agnosticfl.server import ServerState
from agnosticfl.weights import WeightRule


class RoundInfo(NamedTuple):
    """What a round reports. Everything in it is made of sums over clients."""

    domain_weights: Array  # [p] λ_t, after the round
    alpha: Array  # [p] α_t, as the clients got it
    mean_domain_loss: Array  # [p] L_i at w_{t-1}, 0 where absent
    domain_count: Array  # [p] N_t
    beta: Array  # Σ_k β^k
    update_norm: Array  # ‖w_{t-1} − w_t‖
    left_out: Array  # clients whose contribution was not finite
    step_taken: Array  # False if there was nothing to step with, or the step was not finite
    channel: Report  # what the channel has to say of the round
    heldout_loss: Array | None = None  # [p] L_i at w_{t-1} of held-out clients, if λ follows those
    heldout_count: Array | None = None  # [p] and how many examples they have


class Algorithm(NamedTuple):
    """A federated algorithm: `state = init()`, then `round(state, cohort(t))` for t = 1, 2, …"""

    init: Callable[[], ServerState]
    cohort: Callable[[int], Any]  # t -> what the clients of C_t bring to round t
    round: Callable[[ServerState, Any], tuple[ServerState, RoundInfo]]
    clients_per_round: int  # c
    bytes_per_client: Callable[[ServerState], Bytes]  # of the messages of a round
    channel: Channel = PLAIN
    settings: Mapping[str, Any] = MappingProxyType({})  # what the engine chose for itself
    # If not None: state -> the states and infos of the next rounds, stacked: the same, faster.
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]] | None = None
    reporting_clients: int = 0  # held-out ones, who take w and answer (L^k, N^k)


class Setting(NamedTuple):
    """What the rounds of an algorithm are made from."""

    work: ClientWork
    server_optimizer: optax.GradientTransformation
    weight_rule: WeightRule
    data: FederatedData
    sampler: Callable[[int], Sampler]  # seed -> who takes part in round t
    engine: EngineBuilder
    precision: str
    seed: int


class Exchange(NamedTuple):
    """How the server talks to its clients in a round; fields as in `Algorithm`."""

    cohort: Callable[[int], Any]
    round: Callable[[ServerState, Any], tuple[ServerState, RoundInfo]]
    bytes_per_client: Callable[[ServerState], Bytes]
    settings: Mapping[str, Any]
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]] | None = None
    reporting_clients: int = 0
