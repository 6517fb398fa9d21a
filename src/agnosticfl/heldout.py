# SPDX-License-Identifier: Apache-2.0
"""λ by the losses of clients who do not train, and so cannot be memorised."""

from typing import Any

import jax

from agnosticfl.engine import Reporters
from agnosticfl.engine.shards import here
from agnosticfl.rounds import Algorithm, RoundInfo
from agnosticfl.server import ServerState, mean_domain_loss
from agnosticfl.weights import DomainStats, WeightRule


def follow_heldout(
    algorithm: Algorithm, reporters: Reporters, weight_rule: WeightRule
) -> Algorithm:
    """`algorithm`, but λ moves by the losses of held-out clients, measured at w_{t-1} too.

    The training loss of a small domain that the model has memorised says that all is well; clients
    who do not train cannot be memorised. The window, and with it α, still counts who trains. Rounds
    come one by one: there are no blocks.
    """

    @jax.jit
    def follow(rule_state: Any, after: ServerState, info: RoundInfo, total: Any) -> Any:
        loss, count = mean_domain_loss(*total), total.domain_count
        stats = DomainStats(loss, count, after.window.mean)
        weights, rule_state = weight_rule.update(rule_state, stats)
        info = info._replace(domain_weights=weights, heldout_loss=loss, heldout_count=count)
        return after._replace(domain_weights=weights, rule_state=rule_state), info

    def round(state: ServerState, cohort: Any) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohort
        total = reporters.domain_sum(here(state.params), reporting)
        after, info = algorithm.round(state, training)
        # Several devices may hold the state; what one of them measured joins it there.
        before, total = jax.device_put((state.rule_state, total), after.domain_weights.sharding)
        return follow(before, after, info, total)

    return algorithm._replace(
        cohort=lambda t: (algorithm.cohort(t), reporters.cohort(t)),
        round=round,
        block=None,
        reporting_clients=reporters.clients_per_round,
    )
