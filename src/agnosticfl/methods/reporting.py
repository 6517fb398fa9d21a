# SPDX-License-Identifier: Apache-2.0
"""Rounds with a second exchange, in which clients report their losses and nothing else."""

from collections.abc import Callable

import jax
from jax import Array

from agnosticfl.core.algorithm1 import mean_domain_loss, step_weights
from agnosticfl.core.channel import REPORT, Channel
from agnosticfl.core.contribution import Total
from agnosticfl.core.ledger import Bytes, added, bytes_per_report, times
from agnosticfl.core.random import server_key
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.engines.base import Engine
from agnosticfl.engines.reporters import Reporters
from agnosticfl.methods.base import Algorithm, Parts


def moved_by_reports(
    weight_rule: WeightRule, channel: Channel, seed: int
) -> Callable[[ServerState, RoundInfo, Total], tuple[ServerState, RoundInfo, Array, Array]]:
    """(state, info, what was reported) -> both with λ_t; the losses that moved it, their counts.

    The state is that after training, so its round is t already.
    """

    @jax.jit
    def move(
        state: ServerState, info: RoundInfo, encoded: Total
    ) -> tuple[ServerState, RoundInfo, Array, Array]:
        key = jax.random.fold_in(server_key(seed, state.round), REPORT)
        total, report_state, report = channel.decode(state.report_state, encoded, key)
        loss = mean_domain_loss(total.domain_loss, total.domain_count)
        state, taken = step_weights(weight_rule, state, loss, total.domain_count)
        said = {f"heldout_{name}": value for name, value in report.items()}
        info = info._replace(
            domain_weights=state.domain_weights,
            weights_taken=taken,
            channel_report={**info.channel_report, **said},
        )
        return state._replace(report_state=report_state), info, loss, total.domain_count

    return move


def with_reports(
    parts: Parts,
    engine: Engine[PyTree],
    reporters: Reporters,
    round: Callable[[ServerState, tuple[PyTree, PyTree]], tuple[ServerState, RoundInfo]],
    training_bytes: Callable[[ServerState], Bytes],
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]] | None = None,
) -> Algorithm:
    """An algorithm whose rounds get two cohorts: those who train, and those who report.

    Args:
      round: (state, (training cohort, reporting cohort)) -> the next state and its info.
      training_bytes: of one client of the first exchange.
      block: many rounds in one call, if there is one.
    """

    def bytes_per_round(state: ServerState) -> Bytes:
        training = times(parts.clients_per_round, training_bytes(state))
        each = bytes_per_report(state, reporters.channel)
        return added(training, times(reporters.clients_per_round, each))

    return Algorithm(
        parts.init,
        lambda t: (engine.cohort(t), reporters.cohort(t)),
        round,
        parts.clients_per_round,
        bytes_per_round,
        engine.choices,
        block,
    )
