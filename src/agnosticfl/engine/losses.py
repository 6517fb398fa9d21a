# SPDX-License-Identifier: Apache-2.0
"""The loss pass: all clients measure at the same w, so it is one pass in large batches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.client import client_weight
from agnosticfl.engine.feed import Pool
from agnosticfl.engine.plan import LOSS_BATCH, Cohort
from agnosticfl.model import Model, Params


class ClientStats(NamedTuple):
    """What each client of a cohort knows before it trains: c × p numbers, not c × |W|."""

    domain_loss: Array  # [c, p] L^k_i
    domain_count: Array  # [c, p] N^k_i
    beta: Array  # [c] β^k


def client_stats(
    model: Model, params: Params, alpha: Array, pool: Pool, cohort: Cohort
) -> ClientStats:
    """L^k, N^k and β^k of every client, in one compiled loop over batches of the cohort."""

    def step(number: Array, loss: Array) -> Array:
        return loss + batch_loss(model, params, pool, cohort, number, alpha.size)

    nothing = jnp.zeros((len(cohort.clients), alpha.size))
    loss = jax.lax.fori_loop(0, num_loss_batches(cohort), step, nothing)
    return with_weights(alpha, loss, domain_counts(pool, cohort, alpha.size))


def num_loss_batches(cohort: Cohort) -> Any:
    """How many batches hold the cohort's examples."""
    return -(-cohort.offsets[-1] // LOSS_BATCH)


def batch_loss(
    model: Model, params: Params, pool: Pool, cohort: Cohort, number: Array, num_domains: int
) -> Array:
    """[c, p] what batch `number` of the loss pass adds to each L^k_i; dropout is off."""
    place = number * LOSS_BATCH + jnp.arange(LOSS_BATCH)
    rows = cohort.rows[place]
    examples = {name: values[rows] for name, values in pool.examples.items()}
    loss = model.per_example_loss(params, examples, None)
    return _sum_by_client(loss, _owner(cohort, place), pool.domain[rows], cohort, num_domains)


def domain_counts(pool: Pool, cohort: Cohort, num_domains: int) -> Array:
    """N^k_i, [c, p]."""
    owner = _owner(cohort, jnp.arange(len(cohort.rows)))
    segment = owner * num_domains + pool.domain[cohort.rows]
    clients = len(cohort.clients)
    # Whole numbers: they add up to the same in any order.
    count = jax.ops.segment_sum(
        jnp.ones(len(cohort.rows)), segment, (clients + 1) * num_domains
    )  # fmt: skip
    return count.reshape(clients + 1, num_domains)[:clients]


def with_weights(alpha: Array, loss: Array, count: Array) -> ClientStats:
    """Adds β^k."""
    return ClientStats(loss, count, jax.vmap(client_weight, (None, 0))(alpha, count))


def _owner(cohort: Cohort, place: Array) -> Array:
    """The slot whose example is at `place` in `rows`; c, one too many, for filling."""
    return jnp.searchsorted(cohort.offsets, place, side="right").astype(jnp.int32) - 1


def _sum_by_client(
    loss: Array, owner: Array, domain: Array, cohort: Cohort, num_domains: int
) -> Array:
    clients = len(cohort.clients)
    segment = owner * num_domains + domain
    segments = (clients + 1) * num_domains  # the last client is the filling

    def one_by_one(loss: Array, segment: Array) -> Array:
        return jax.ops.segment_sum(loss, segment, segments)

    def side_by_side(loss: Array, segment: Array) -> Array:
        mine = segment[:, None] == jnp.arange(segments)[None]
        return jnp.sum(jnp.where(mine, loss[:, None], 0), axis=0)

    # An accelerator adds scattered numbers in an order of its own each time; these bits stay.
    total = jax.lax.platform_dependent(loss, segment, cpu=one_by_one, default=side_by_side)
    return total.reshape(clients + 1, num_domains)[:clients]
