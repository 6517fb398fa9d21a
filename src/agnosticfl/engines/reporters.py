# SPDX-License-Identifier: Apache-2.0
"""Clients who only report: they measure the model they are sent and answer (L^k, N^k)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import PLAIN, REPORT, Channel, sent_by_client
from agnosticfl.core.contribution import ChannelState, Total, report
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Params
from agnosticfl.core.random import client_key
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork
from agnosticfl.engines.base import Blocks, Stacked
from agnosticfl.engines.helpers import feed, plan
from agnosticfl.engines.helpers.feed import Pool
from agnosticfl.engines.helpers.losses import loss_by_steps, loss_in_one_loop, num_loss_batches
from agnosticfl.engines.helpers.plan import Plan

MOST_EXAMPLES = 2**22  # in a block of rounds: its plan then stays well below the data itself


class ReportCohort(NamedTuple):
    """Who reports in a round, with their examples."""

    pool: Pool
    cohort: Plan
    loss_batches: int | None = None  # how often the host calls a step; None in a block


class Reporters(NamedTuple):
    """Who reports, and the sum of what they say."""

    cohort: Callable[[int], ReportCohort]  # round t -> its input
    # (w, the channel's state, who reports) -> Σ_k of what their channel lets through
    total: Callable[[Params, ChannelState, ReportCohort], Total]
    clients_per_round: int
    channel: Channel
    blocks: Callable[[int], Blocks[ReportCohort] | None]  # of so many rounds, if data fits


def reporters(
    work: ClientWork,
    data: FederatedData,
    sampler: Sampler,
    seed: int,
    channel: Channel = PLAIN,
) -> Reporters:
    """The clients that `sampler` draws; of those with a loss that is not finite, nothing counts.

    Args:
      channel: what is done to a report, a `ClientSum` without an update, before it is sent.
    """
    planner = plan.make_planner(work, data, sampler, seed)
    measure = loss_by_steps(work.model, work.num_domains)

    def fed(t: int) -> ReportCohort:
        cohort = tree.row(plan.plans(planner, range(t, t + 1)), 0)
        batches = int(num_loss_batches(cohort))
        pool, cohort = jax.device_put(feed.of_cohort(data, cohort))
        return ReportCohort(pool, cohort, batches)

    def summed(loss: Array, state: ChannelState, cohort: Plan) -> Total:
        def one_client(loss: Array, count: Array, client: Array) -> Any:
            key = jax.random.fold_in(client_key(cohort.seed, cohort.round, client), REPORT)
            return sent_by_client(channel, state, report(loss, count), key)

        sent = jax.vmap(one_client)(loss, cohort.domain_count, cohort.clients)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), sent)

    summed_alone = jax.jit(summed)

    def total(params: Params, state: ChannelState, fed: ReportCohort) -> Total:
        if fed.loss_batches is None:
            batches = num_loss_batches(fed.cohort)
            loss = loss_in_one_loop(
                work.model, params, fed.pool, fed.cohort, work.num_domains, batches
            )
            return summed(loss, state, fed.cohort)
        loss = measure(params, fed.pool, fed.cohort, fed.loss_batches)
        return summed_alone(loss, state, fed.cohort)

    def blocks(rounds: int) -> Blocks[ReportCohort] | None:
        if not feed.fits(data) or rounds * plan.most_examples(planner) > MOST_EXAMPLES:
            return None
        pool = jax.device_put(feed.whole(data))

        def stacked(t: int) -> Stacked:
            cohorts = plan.plans(planner, range(t, t + rounds))
            return Stacked(pool, jax.device_put(feed.for_device(cohorts)))

        return Blocks(rounds, feed.prefetched(stacked, rounds), ReportCohort)

    return Reporters(feed.prefetched(fed), total, len(sampler(1)), channel, blocks)
