# SPDX-License-Identifier: Apache-2.0
"""A compiled step called from the host, one call a batch: the fast way for convolutions on a CPU.

XLA's CPU convolution runs about twenty times slower inside a compiled loop than outside one, and a
step of such a model takes far longer than a call does.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl import tree
from agnosticfl.client import ClientSum, ClientWork, contribution, local_step, step_key
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine import feed, plan
from agnosticfl.engine.feed import Pool
from agnosticfl.engine.lanes import batch_at, local_step_at
from agnosticfl.engine.losses import (
    ClientStats,
    batch_loss,
    num_loss_batches,
    with_weights,
)
from agnosticfl.engine.plan import Cohort
from agnosticfl.engine.seam import Engine, client_key
from agnosticfl.model import Params
from agnosticfl.sampling import Sampler


class Fed(NamedTuple):
    """The input of a round."""

    pool: Pool
    cohort: Cohort
    local_steps: np.ndarray  # [c] E⌈n_k/B⌉


def steps(work: ClientWork, data: FederatedData, sampler: Sampler, seed: int) -> Engine:
    """An engine whose loops are Python's and whose steps are compiled, each once."""
    planner = plan.planner(work, data, sampler, seed)
    pool = feed.whole(data) if feed.fits(data) else None
    p = work.num_domains
    finish = jax.jit(with_weights)

    def fed(t: int) -> Fed:
        cohort = tree.row(plan.cohorts(planner, range(t, t + 1)), 0)
        numbers = plan.local_steps(planner, np.diff(cohort.offsets))
        return Fed(*feed.placed(data, pool, cohort), numbers)

    @jax.jit
    def add_loss(loss: Array, params: Params, pool: Pool, cohort: Cohort, number: int) -> Array:
        return loss + batch_loss(work.model, params, pool, cohort, jnp.asarray(number), p)

    @jax.jit
    def step(
        params: Params, opt_state: Any, alpha: Array, fed: Fed, beta: Array, slot: int, number: int
    ) -> tuple[Params, Any]:
        place = local_step_at(work, fed.cohort, jnp.asarray(slot), jnp.asarray(number))
        batch = batch_at(work, fed.pool, fed.cohort, place)
        key = client_key(seed, fed.cohort.round, fed.cohort.clients[slot])
        key = step_key(key, place.epoch, place.batch)
        return local_step(work, params, opt_state, batch, alpha, beta[slot], key)

    @jax.jit
    def add(
        total: ClientSum, params: Params, trained: Params, stats: ClientStats, slot: int
    ) -> ClientSum:
        own = jax.tree.map(lambda leaf: leaf[slot], stats)
        more = contribution(params, trained, own.beta, own.domain_loss, own.domain_count)
        return jax.tree.map(jnp.add, total, more)

    def sum_over_clients(params: Params, alpha: Array, fed: Fed) -> ClientSum:
        pool, cohort, local_steps = fed
        loss = jnp.zeros((len(cohort.clients), p))
        for number in range(num_loss_batches(cohort)):
            loss = add_loss(loss, params, pool, cohort, number)
        stats = finish(alpha, loss, cohort)
        beta = stats.beta
        total = ClientSum(*jax.tree.map(jnp.zeros_like, (params, alpha[0], alpha, alpha, alpha[0])))
        for slot, number_of_steps in enumerate(local_steps.tolist()):
            trained, opt_state = params, work.optimizer.init(params)
            for number in range(number_of_steps):
                trained, opt_state = step(trained, opt_state, alpha, fed, beta, slot, number)
            total = add(total, params, trained, stats, slot)
        return total

    return Engine(feed.prefetched(fed), sum_over_clients, compile=lambda round: round)
