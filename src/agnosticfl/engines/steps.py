# SPDX-License-Identifier: Apache-2.0
"""A compiled step called from the host, one call per batch: the fast way for convolutions on a CPU.

XLA's CPU convolution runs about twenty times slower inside a compiled loop than outside one, and a
step of such a model takes far longer than a call does. Each core has a client of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.algorithm1 import contribution, local_step
from agnosticfl.core.channel import sent_by_client, summand_zeros
from agnosticfl.core.contribution import Broadcast, SumOverClients, Total, contribution_shapes
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Params
from agnosticfl.core.random import client_key, step_key
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.stepping import step_by_step
from agnosticfl.core.work import ClientWork, local_start
from agnosticfl.engines.base import Engine, as_it_is, remembered
from agnosticfl.engines.helpers import feed, plan, shards
from agnosticfl.engines.helpers.batches import batch_at, local_step_at
from agnosticfl.engines.helpers.feed import MakePool, Pool
from agnosticfl.engines.helpers.losses import (
    ClientStats,
    loss_by_steps,
    num_loss_batches,
    with_weights,
)
from agnosticfl.engines.helpers.plan import Plan
from agnosticfl.engines.helpers.workers import in_order
from agnosticfl.registry import ENGINES


class StepCohort(NamedTuple):
    """A cohort, with how often the host calls each step."""

    pool: Pool
    cohort: Plan
    loss_batches: int
    turns: list[tuple[int, int]]  # [c] slot and local steps of each client, longest first


class Programs(NamedTuple):
    """What the host calls, each compiled by itself."""

    measure: Callable[..., Array]  # the loss pass
    finish: Callable[..., ClientStats]
    step: Callable[..., tuple[Params, Any]]
    add: Callable[..., Any]


def _programs(work: ClientWork) -> Programs:
    @jax.jit
    def step(
        trained: tuple[Params, Any],
        alpha: Array,
        stats: ClientStats,
        pool: Pool,
        cohort: Plan,
        at: Any,
    ) -> tuple[Params, Any]:
        slot, number = map(jnp.asarray, at)
        place = local_step_at(work, cohort, slot, number)
        batch = batch_at(work, pool, cohort, place)
        key = client_key(cohort.seed, cohort.round, cohort.clients[slot])
        key = step_key(key, place.epoch, place.batch)
        params, opt_state = trained
        beta, size = stats.beta[slot], jnp.sum(stats.domain_count[slot])
        with step_by_step():
            return local_step(work, params, opt_state, batch, alpha, beta, size, key)

    @jax.jit
    def add(
        total: Any, sent: Broadcast, trained: Params, stats: ClientStats, cohort: Plan, slot: int
    ) -> Any:
        own = tree.row(stats, slot)
        more = contribution(sent.params, trained, own.beta, own.domain_loss, own.domain_count)
        key = client_key(cohort.seed, cohort.round, cohort.clients[slot])
        return tree.add(total, sent_by_client(work.channel, sent.channel_state, more, key))

    measure = loss_by_steps(work.model, work.num_domains)
    return Programs(measure, jax.jit(with_weights), step, add)


@remembered
def sum_by_steps(
    work: ClientWork, together: Callable[[Total], Total] | None
) -> SumOverClients[StepCohort]:
    """Both passes over a cohort, or over a part of it, which is put `together` with the others."""
    measure, finish, step, add = _programs(work)
    shapes = contribution_shapes(work.model, work.num_domains)

    def sum_over_clients(sent: Broadcast, fed: StepCohort) -> Total:
        params, alpha = sent.params, sent.alpha
        pool, cohort, loss_batches, turns = fed
        stats = finish(alpha, measure(params, pool, cohort, loss_batches), cohort)
        start = local_start(work, params, sent.client_rate)
        total = summand_zeros(work.channel, shapes)

        def trained_in(turn: int) -> Params:
            slot, steps = turns[turn]
            trained = start
            for number in range(steps):
                trained = step(trained, alpha, stats, pool, cohort, (slot, number))
            return trained[0]

        for (slot, _), trained in zip(turns, in_order(trained_in, len(turns)), strict=True):
            total = add(total, sent, trained, stats, cohort, slot)
        return total if together is None else together(total)

    return sum_over_clients


@ENGINES.add("steps")
def steps_engine(
    work: ClientWork,
    data: FederatedData,
    sampler: Sampler,
    seed: int,
    *,
    pool: MakePool | None = None,
) -> Engine[StepCohort]:
    """An engine whose loops are Python's and whose steps are compiled, each once.

    Several processes share each cohort; each works on one device. `pool` is as for `lanes_engine`.
    """
    mesh = shards.mesh_of(1)
    planner = plan.make_planner(work, data, sampler, seed, mesh.size)
    everybody = (pool or feed.on_device)(data) if feed.fits(data) else None
    room = plan.usual_examples(planner, mesh.size) if everybody is None else 0
    together = shards.over_processes(mesh) if mesh.size > 1 else None

    def fed(t: int) -> StepCohort:
        own = plan.parted(planner, t, mesh.size)[[jax.process_index()]]
        cohort = tree.row(plan.plans_of(planner, np.array([t]), own), 0)
        local_steps = plan.local_steps(planner, np.diff(cohort.offsets)[own[0] != plan.NOBODY])
        order = np.argsort(-local_steps, kind="stable")  # no core ends alone with a long client
        turns = list(zip(order.tolist(), local_steps[order].tolist(), strict=True))
        batches = int(num_loss_batches(cohort))
        examples, cohort = jax.device_put(feed.placed(data, everybody, cohort, room))
        return StepCohort(examples, cohort, batches, turns)

    return Engine(
        feed.prefetched(fed),
        sum_by_steps(work, together),
        compile=as_it_is,
        choices={"engine": "steps", "devices": mesh.size},
    )
