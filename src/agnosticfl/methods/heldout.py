# SPDX-License-Identifier: Apache-2.0
"""λ by the losses of clients who do not train, and so cannot be memorised."""

from typing import Any

import jax
from jax import Array

from agnosticfl.core.algorithm1 import one_exchange, step_model
from agnosticfl.core.channel import is_plain
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.ledger import bytes_per_client
from agnosticfl.core.precision import in_precision
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.engines.helpers.shards import here
from agnosticfl.engines.reporters import reporters
from agnosticfl.errors import check
from agnosticfl.methods.base import Algorithm, Parts
from agnosticfl.methods.reporting import moved_by_reports, with_reports


def heldout_rounds(parts: Parts) -> Algorithm:
    """Algorithm 1, but λ moves by the losses of held-out clients, measured at w_{t-1} too.

    The training loss of a small domain that the model has memorised says that all is well; clients
    who do not train cannot be memorised. The window, and with it α, still counts who trains. Rounds
    come one by one: there are no blocks.
    """
    data, heldout, seed = parts.data, parts.heldout, parts.seed
    assert heldout is not None
    check(is_plain(parts.way), "held-out clients report in the clear: the channel must be plain")
    names = ", ".join(data.domains)
    check(heldout.domains == data.domains, f"held-out domains differ from the training's: {names}")
    number = min(parts.clients_per_round, heldout.num_clients)
    others = reporters(parts.work, heldout, parts.sampler(heldout, number, seed), seed)
    measure = in_precision(others.domain_sum, parts.precision)
    engine = parts.engine_for(parts.work)

    def after_sum(
        state: ServerState, alpha: Array, total: ClientSum
    ) -> tuple[ServerState, RoundInfo]:
        return step_model(parts.server_steps, state, alpha, total)

    train = one_exchange(engine.sum_over_clients, after_sum, parts.way, seed)
    train = engine.compile(in_precision(train, parts.precision))

    move = moved_by_reports(parts.rule)

    def round(state: ServerState, cohorts: tuple[PyTree, PyTree]) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohorts
        total = measure(here(state.params), reporting)
        state, info = train(state, training)
        # Several devices may hold the state; what one of them measured joins it there.
        place: Any = state.domain_weights.sharding
        total = jax.device_put(total, place)
        state, info, loss = move(state, info, total)
        return state, info._replace(heldout_loss=loss, heldout_count=total.domain_count)

    return with_reports(
        parts, engine, others, round, lambda state: bytes_per_client(state, parts.way)
    )
