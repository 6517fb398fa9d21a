# SPDX-License-Identifier: Apache-2.0
"""Clients packed onto a few lanes: one compiled computation a round, lanes × |W| of memory.

The batches of all clients are laid end to end on L lanes, longest client first. At each step all
lanes do one batch side by side; at a client's last batch its contribution is added to the one sum,
and its lane goes back to w_{t-1} for the next one. Nothing grows with the cohort but its plan.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl import tree
from agnosticfl.channel import is_plain
from agnosticfl.client import (
    Batch,
    ClientWork,
    local_step,
    step_key,
)
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine import feed, plan
from agnosticfl.engine.feed import Pool
from agnosticfl.engine.losses import ClientStats, client_stats
from agnosticfl.engine.plan import Cohort, Layout, Planner
from agnosticfl.engine.seam import Blocks, Broadcast, Engine, client_key
from agnosticfl.engine.summing import as_one_sum, client_by_client
from agnosticfl.errors import check
from agnosticfl.sampling import Sampler

TINY = 4096  # numbers of a model that trains faster than it is called
MOST_TINY_LANES = 64  # for such a model,
MOST_LANES = 25  # and for any other
MOST_ROUNDS = 128  # in a block,
BLOCK_EXAMPLES = 2**18  # and examples: together they keep a block well below a second


class Packed(NamedTuple):
    """The input of a round."""

    pool: Pool
    cohort: Cohort
    layout: Layout


class LocalStep(NamedTuple):
    """Where one local step stands in its client's work."""

    start: Array  # place of its first example in the cohort's rows
    size: Array  # number of examples, from 0 (no step at all) to B
    epoch: Array
    batch: Array
    last: Array


def lanes(
    work: ClientWork, data: FederatedData, sampler: Sampler, seed: int, *, lanes: int | None = None
) -> Engine:
    """An engine with `lanes` (L) lanes; as many as suit the model and the device if None."""
    check(lanes is None or lanes >= 1, f"number of lanes is {lanes}; it must be at least 1")
    planner = plan.planner(work, data, sampler, seed)
    clients = len(sampler(1))
    size = tree.size(jax.eval_shape(work.model.init, jax.random.key(0)))
    number = min(lanes or suitable_lanes(size, clients), clients)
    pool = feed.whole(data) if feed.fits(data) else None

    def packed(t: int) -> Packed:
        stacked = plan.cohorts(planner, range(t, t + 1))
        layout = tree.row(plan.layouts(planner, stacked, number), 0)
        return jax.device_put(Packed(*feed.placed(data, pool, tree.row(stacked, 0)), layout))

    def sum_over_clients(sent: Broadcast, packed: Packed) -> Any:
        stats = client_stats(work.model, sent.params, sent.alpha, packed.pool, packed.cohort)
        return train(work, sent, packed, stats, seed)

    rounds = min(MOST_ROUNDS, BLOCK_EXAMPLES // plan.most_examples(planner))
    blocks = None
    if pool is not None and size <= TINY and rounds > 1:
        blocks = in_blocks(planner, pool, number, rounds)
    return Engine(feed.prefetched(packed), sum_over_clients, blocks=blocks)


def suitable_lanes(size: int, clients: int) -> int:
    """L for a model of `size` numbers (|W|) and a cohort of `clients` (c).

    Tiny models want all clients side by side. Others fill a CPU's cores with one batch; on an
    accelerator two clients a lane still pack well, and the limit bounds memory for large cohorts.
    """
    if size <= TINY:
        return MOST_TINY_LANES
    return 1 if jax.default_backend() == "cpu" else min(-(-clients // 2), MOST_LANES)


def in_blocks(planner: Planner, pool: Pool, lanes: int, rounds: int) -> Blocks:
    """Blocks of `rounds` rounds: a loop over their plans, with all data on the device."""

    def packed(t: int) -> Packed:
        cohorts = plan.cohorts(planner, range(t, t + rounds))
        layouts = plan.layouts(planner, cohorts, lanes)
        return jax.device_put(Packed(pool, feed.for_device(cohorts), layouts))

    return Blocks(rounds, feed.prefetched(packed, rounds), compile_block)


def compile_block(round: Callable[[Any, Packed], tuple[Any, Any]]) -> Any:
    """A compiled loop over rounds whose plans are stacked; gives each round's state and info."""

    @jax.jit
    def block(state: Any, packed: Packed) -> Any:
        def one_round(state: Any, own: tuple[Cohort, Layout]) -> tuple[Any, Any]:
            state, info = round(state, Packed(packed.pool, *own))
            return state, (state, info)

        return jax.lax.scan(one_round, state, (packed.cohort, packed.layout))[1]

    return block


def train(work: ClientWork, sent: Broadcast, packed: Packed, stats: ClientStats, seed: int) -> Any:
    """The training pass: Σ_k over the clients of the cohort."""
    pool, cohort, layout = packed
    params, alpha, _ = sent
    keys = jax.vmap(lambda k: client_key(seed, cohort.round, k))(cohort.clients)
    places = jax.vmap(jax.vmap(lambda k, n: local_step_at(work, cohort, k, n)))(
        layout.slot, layout.number
    )
    start = (params, work.optimizer.init(params))
    summing = as_one_sum if is_plain(work.channel) else client_by_client
    zero, add, finished = summing(work, sent, cohort, stats, keys)

    def one_lane(lane: Any, slot: Array, place: LocalStep) -> Any:
        key = step_key(keys[slot], place.epoch, place.batch)
        batch = batch_at(work, pool, cohort, place)
        return local_step(work, *lane, batch, alpha, stats.beta[slot], key)

    def step(s: Array, carry: Any) -> Any:
        lanes, total = carry
        slot, place = layout.slot[s], jax.tree.map(lambda leaf: leaf[s], places)
        lanes = jax.vmap(one_lane)(lanes, slot, place)

        def finish(lanes: Any, total: Any) -> Any:
            """Adds what clients at their last step contribute; their lanes go back to w_{t-1}."""
            fresh = jax.vmap(tree.select, (0, None, 0))(place.last, start, lanes)
            return fresh, add(total, lanes[0], slot, place.last)

        def go_on(*carry: Any) -> Any:
            return carry

        return jax.lax.cond(jnp.any(place.last), finish, go_on, lanes, total)

    width = layout.slot.shape[1]
    lanes = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *leaf.shape)), start)
    _, total = jax.lax.fori_loop(0, layout.steps, step, (lanes, zero))
    return finished(total)


def local_step_at(work: ClientWork, cohort: Cohort, slot: Array, number: Array) -> LocalStep:
    """Local step `number` of the client in `slot`; a step of size 0 if the number is −1."""
    begin, size = cohort.offsets[slot], cohort.offsets[slot + 1] - cohort.offsets[slot]
    batches = jnp.maximum(-(-size // work.batch_size), 1)
    epoch, batch = number // batches, number % batches
    real = number >= 0
    return LocalStep(
        start=begin + batch * work.batch_size,
        size=jnp.where(real, jnp.minimum(size - batch * work.batch_size, work.batch_size), 0),
        epoch=epoch,
        batch=batch,
        last=real & (number == work.epochs * batches - 1),
    )


def batch_at(work: ClientWork, pool: Pool, cohort: Cohort, place: LocalStep) -> Batch:
    """The batch of a local step, gathered by its examples' numbers.

    Filling repeats an example of the same batch: another client's could bring a NaN of its own.
    """
    number = jnp.arange(work.batch_size)
    rows = cohort.rows[place.start + jnp.minimum(number, jnp.maximum(place.size - 1, 0))]
    examples = {name: values[rows] for name, values in pool.examples.items()}
    return Batch(examples, pool.domain[rows], (number < place.size).astype(jnp.float32))
