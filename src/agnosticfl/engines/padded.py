# SPDX-License-Identifier: Apache-2.0
"""One compiled computation per round: all clients padded to the longest, side by side.

Good for small models and clients of similar size: memory is clients × |W|, and every client costs
what the longest one does.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.algorithm1 import (
    client_weight,
    contribution,
    domain_count,
    domain_loss,
    local_step,
)
from agnosticfl.core.channel import sent_by_client
from agnosticfl.core.contribution import Broadcast, ClientSum, Total
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Params
from agnosticfl.core.random import client_key, example_order, step_key
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.tree import PyTree
from agnosticfl.core.work import Batch, ClientWork, local_start, num_steps, take
from agnosticfl.engines.base import Engine, check_one_process
from agnosticfl.registry import ENGINES


class PaddedCohort(NamedTuple):
    """A cohort whose clients are all as long as the longest."""

    batches: Batch  # [clients, steps, B, ...]
    clients: Any  # C_t, [clients] int32
    round: Any  # t, int32


@ENGINES.add("padded")
def padded_engine(
    work: ClientWork, data: FederatedData, sampler: Sampler, seed: int
) -> Engine[PaddedCohort]:
    """An engine whose cohorts all have one shape, so that a round is compiled once."""
    check_one_process("padded")
    longest = max(int(data.sizes.max()), 1)
    steps = -(-longest // work.batch_size)

    def cohort(t: int) -> PaddedCohort:
        clients = sampler(t)
        sizes = data.sizes_of(clients)
        length = steps * work.batch_size
        order = example_order(seed, t, clients, sizes, length)
        # Padding repeats a real example (of anyone, if the client has none): a model that cannot
        # take zeros is never given any. Its mask keeps it out of every sum.
        first = np.minimum(data.offsets[clients], data.num_examples - 1)
        rows = (first[:, None] + order).reshape(len(clients), steps, work.batch_size)
        mask = (np.arange(length) < sizes[:, None]).reshape(rows.shape)
        batches = take(data, rows, mask.astype(np.float32))
        return PaddedCohort(batches, clients.astype(np.int32), np.asarray(t, np.int32))

    def sum_over_clients(sent: Broadcast, cohort: PaddedCohort) -> Total:
        def one_client(batches: Batch, client: Array) -> PyTree:
            key = client_key(seed, cohort.round, client)
            w, rate = sent.params, sent.client_rate
            sums = client_in_one_scan(work, w, sent.alpha, batches, key, rate)
            return sent_by_client(work.channel, sent.channel_state, sums, key)

        sums = jax.vmap(one_client)(cohort.batches, cohort.clients)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), sums)

    return Engine(cohort, sum_over_clients, choices={"engine": "padded"})


def client_in_one_scan(
    work: ClientWork,
    params: Params,
    alpha: Array,
    batches: Batch,
    key: Array,
    rate: Array | None = None,
) -> ClientSum:
    """`core.algorithm1.client` as one compiled loop, for stacked batches, [steps, B, …].

    Batches that are all padding change nothing, so clients of different sizes can be stacked.
    """
    p = work.num_domains
    count = jax.vmap(lambda b: domain_count(b, p))(batches).sum(0)
    loss = jax.vmap(lambda b: domain_loss(work.model, params, b, p))(batches).sum(0)
    beta, size = client_weight(alpha, count), jnp.sum(count)
    real = jnp.any(batches.mask > 0, axis=1)
    limit = num_steps(work, jnp.sum(batches.mask).astype(jnp.int32))

    def step(carry: Any, inputs: Any) -> tuple[Any, None]:
        (params, opt_state), (batch, key, wanted) = carry, inputs
        new = local_step(work, params, opt_state, batch, alpha, beta, size, key)
        return tree.select(wanted, new, carry), None

    def epoch(carry: Any, number: Array) -> tuple[Any, None]:
        steps = jnp.arange(len(real))
        keys = jax.vmap(lambda s: step_key(key, number, s))(steps)
        wanted = real & (number * jnp.sum(real) + steps < limit)
        return jax.lax.scan(step, carry, (batches, keys, wanted))[0], None

    start = local_start(work, params, rate)
    (trained, _), _ = jax.lax.scan(epoch, start, jnp.arange(work.epochs))
    return contribution(params, trained, beta, loss, count)
