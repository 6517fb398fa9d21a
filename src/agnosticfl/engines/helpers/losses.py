# SPDX-License-Identifier: Apache-2.0
"""The loss pass: all clients measure at the same w, so it is one pass in large batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core.algorithm1 import client_weight
from agnosticfl.core.model import Model, Params
from agnosticfl.engines.helpers.feed import Pool
from agnosticfl.engines.helpers.plan import Plan, loss_batch
from agnosticfl.engines.helpers.workers import in_order


class ClientStats(NamedTuple):
    """What each client of a cohort knows before it trains: c × p numbers, not c × |W|."""

    domain_loss: Array  # [c, p] L^k_i
    domain_count: Array  # [c, p] N^k_i
    beta: Array  # [c] β^k


def client_stats(
    model: Model, params: Params, alpha: Array, pool: Pool, cohort: Plan, batches: Any
) -> ClientStats:
    """L^k, N^k and β^k of every client, in one compiled loop over `batches` of the cohort."""
    loss = loss_in_one_loop(model, params, pool, cohort, alpha.size, batches)
    return with_weights(alpha, loss, cohort)


def loss_in_one_loop(
    model: Model, params: Params, pool: Pool, cohort: Plan, num_domains: int, batches: Any
) -> Array:
    """[c, p] L^k_i. Batches beyond the cohort's examples (`num_loss_batches`) add nothing."""

    def step(number: Array, loss: Array) -> Array:
        return loss + batch_loss(model, params, pool, cohort, number, num_domains)

    nothing = jnp.zeros((len(cohort.clients), num_domains))
    return jax.lax.fori_loop(0, batches, step, nothing)


def loss_by_steps(model: Model, num_domains: int) -> Callable[..., Array]:
    """`(w, pool, cohort, batches) -> [c, p]`, the L^k_i: as above, one compiled call per batch."""

    @jax.jit
    def one(params: Params, pool: Pool, cohort: Plan, number: int) -> Array:
        return batch_loss(model, params, pool, cohort, jnp.asarray(number), num_domains)

    def measure(params: Params, pool: Pool, cohort: Plan, batches: int) -> Array:
        loss = jnp.zeros((len(cohort.clients), num_domains))
        for more in in_order(lambda number: one(params, pool, cohort, number), batches):
            loss += more
        return loss

    return measure


def num_loss_batches(cohort: Plan) -> Any:
    """How many batches hold the cohort's examples."""
    return -(-cohort.offsets[-1] // loss_batch())


def batch_loss(
    model: Model, params: Params, pool: Pool, cohort: Plan, number: Array, num_domains: int
) -> Array:
    """[c, p] what batch `number` of the loss pass adds to each L^k_i; dropout is off."""
    rows, owner = (
        jax.lax.dynamic_slice_in_dim(leaf, number * loss_batch(), loss_batch())
        for leaf in (cohort.rows, cohort.owner)
    )
    examples = {name: values[rows] for name, values in pool.examples.items()}
    loss = model.per_example_loss(params, examples, None)
    segment = owner * num_domains + pool.domain[rows]
    return _sum_by_client(loss, segment, len(cohort.clients), num_domains)


def with_weights(alpha: Array, loss: Array, cohort: Plan) -> ClientStats:
    """Adds N^k and β^k."""
    beta = jax.vmap(client_weight, (None, 0))(alpha, cohort.domain_count)
    return ClientStats(loss, cohort.domain_count, beta)


def _sum_by_client(loss: Array, segment: Array, clients: int, num_domains: int) -> Array:
    segments = (clients + 1) * num_domains  # the last client is the padding

    def one_by_one(loss: Array, segment: Array) -> Array:
        return jax.ops.segment_sum(loss, segment, segments)

    def side_by_side(loss: Array, segment: Array) -> Array:
        mine = segment[:, None] == jnp.arange(segments)[None]
        return jnp.sum(jnp.where(mine, loss[:, None], 0), axis=0)

    # An accelerator adds scattered numbers in an order of its own each time; these bits stay.
    total = jax.lax.platform_dependent(loss, segment, cpu=one_by_one, default=side_by_side)
    return total.reshape(clients + 1, num_domains)[:clients]
