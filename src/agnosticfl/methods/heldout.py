# SPDX-License-Identifier: Apache-2.0
"""λ by the losses of clients who do not train, and so cannot be memorised."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from agnosticfl.core.algorithm1 import one_exchange, step_model
from agnosticfl.core.channel import is_plain
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.ledger import bytes_per_client
from agnosticfl.core.precision import in_precision
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.engines.base import compile_block, paired
from agnosticfl.engines.helpers.shards import here
from agnosticfl.engines.reporters import Reporters, reporters
from agnosticfl.errors import check
from agnosticfl.methods.base import Algorithm, Parts, reports_per_round
from agnosticfl.methods.reporting import moved_by_reports, with_reports


def heldout_rounds(parts: Parts) -> Algorithm:
    """Algorithm 1, but λ moves by the losses of held-out clients, measured at w_{t-1} too.

    The training loss of a small domain that the model has memorised says that all is well; clients
    who do not train cannot be memorised. The window, and with it α, still counts who trains. What
    protects those who train does not protect those who report: they have a channel of their own.
    """
    heldout, seed = parts.heldout, parts.seed
    assert heldout is not None
    check(
        is_plain(parts.way) or parts.report_channel is not None,
        "held-out clients would report in the clear beside those whom a channel protects;"
        " give their reports a channel too (report_channel)",
    )
    others = heldout if isinstance(heldout, Reporters) else _reporters(parts, heldout)
    engine = parts.engine_for(parts.work)
    move = moved_by_reports(parts.rule, parts.report_way, seed)

    def after_sum(
        state: ServerState, alpha: Array, total: ClientSum
    ) -> tuple[ServerState, RoundInfo]:
        return step_model(parts.server_steps, state, alpha, total)

    train = one_exchange(engine.sum_over_clients, after_sum, parts.way, seed)
    trained = engine.compile(in_precision(train, parts.precision))
    measure = in_precision(others.total, parts.precision)

    def round(state: ServerState, cohorts: tuple[PyTree, PyTree]) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohorts
        total = measure(here(state.params), here(state.report_state), reporting)
        state, info = trained(state, training)
        # Several devices may hold the state; what one of them measured joins it there. One device
        # has both already: what is put there would be held there, for which JAX compiles anew.
        place: Any = state.domain_weights.sharding
        alone = len(place.device_set) == 1
        return moved(state, info, total if alone else jax.device_put(total, place))

    def in_a_block(
        state: ServerState, cohorts: tuple[PyTree, PyTree]
    ) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohorts
        total = others.total(state.params, state.report_state, reporting)
        return moved(*train(state, training), total)

    def moved(state: ServerState, info: RoundInfo, total: PyTree) -> tuple[ServerState, RoundInfo]:
        state, info, loss, count = move(state, info, total)
        return state, info._replace(heldout_loss=loss, heldout_count=count)

    def block() -> Callable[[ServerState], tuple[ServerState, RoundInfo]] | None:
        own = engine.blocks and others.blocks(engine.blocks.rounds)
        if engine.blocks is None or own is None:
            return None
        return compile_block(paired(engine.blocks, own), in_precision(in_a_block, parts.precision))

    return with_reports(
        parts, engine, others, round, lambda state: bytes_per_client(state, parts.way), block()
    )


def _reporters(parts: Parts, heldout: FederatedData) -> Reporters:
    """Held-out clients of which as many report as train."""
    names = ", ".join(parts.data.domains)
    same = heldout.domains == parts.data.domains
    check(same, f"held-out domains differ from the training's: {names}")
    number = reports_per_round(parts.clients_per_round, heldout)
    sampler = parts.sampler(heldout, number, parts.seed)
    return reporters(parts.work, heldout, sampler, parts.seed, parts.report_way)
