# SPDX-License-Identifier: Apache-2.0
"""Rounds with a second exchange, in which clients report their losses and nothing else."""

from collections.abc import Callable

from agnosticfl.core.ledger import Bytes, added, bytes_per_report, times
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.engines.base import Engine
from agnosticfl.engines.reporters import Reporters
from agnosticfl.methods.base import Algorithm, Parts


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
