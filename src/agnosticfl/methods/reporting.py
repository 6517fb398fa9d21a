# SPDX-License-Identifier: Apache-2.0
"""Rounds with a second exchange, in which clients report their losses and nothing else."""

from collections.abc import Callable

import jax
from jax import Array

from agnosticfl.core.algorithm1 import mean_domain_loss, step_weights
from agnosticfl.core.ledger import Bytes, added, bytes_per_report, times
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.engines.base import Engine
from agnosticfl.engines.reporters import DomainSum, Reporters
from agnosticfl.methods.base import Algorithm, Parts


def moved_by_reports(
    weight_rule: WeightRule,
) -> Callable[[ServerState, RoundInfo, DomainSum], tuple[ServerState, RoundInfo, Array]]:
    """(state, info, what was reported) -> both with λ_t, and the mean losses that moved it."""

    @jax.jit
    def move(
        state: ServerState, info: RoundInfo, total: DomainSum
    ) -> tuple[ServerState, RoundInfo, Array]:
        loss = mean_domain_loss(*total)
        state = step_weights(weight_rule, state, loss, total.domain_count)
        return state, info._replace(domain_weights=state.domain_weights), loss

    return move


def with_reports(
    parts: Parts,
    engine: Engine[PyTree],
    reporters: Reporters,
    round: Callable[[ServerState, tuple[PyTree, PyTree]], tuple[ServerState, RoundInfo]],
    training_bytes: Callable[[ServerState], Bytes],
) -> Algorithm:
    """An algorithm whose rounds get two cohorts: those who train, and those who report.

    Args:
      round: (state, (training cohort, reporting cohort)) -> the next state and its info.
      training_bytes: of one client of the first exchange.
    """

    def bytes_per_round(state: ServerState) -> Bytes:
        training = times(parts.clients_per_round, training_bytes(state))
        return added(training, times(reporters.clients_per_round, bytes_per_report(state)))

    return Algorithm(
        parts.init,
        lambda t: (engine.cohort(t), reporters.cohort(t)),
        round,
        parts.clients_per_round,
        bytes_per_round,
        engine.choices,
    )
