# SPDX-License-Identifier: Apache-2.0
"""The reference: one client after another, one batch after another, nothing padded or masked.

Slow and obviously right. Every other engine must give the same `ClientSum`.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.channel import sent_by_client
from agnosticfl.client import (
    Batch,
    ClientWork,
    client_weight,
    contribution,
    domain_count,
    domain_loss,
    local_step,
    step_key,
    take,
)
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine.seam import Broadcast, Engine, client_key
from agnosticfl.sampling import Sampler, example_order


class Cohort(NamedTuple):
    round: int
    clients: np.ndarray  # C_t


def reference(work: ClientWork, data: FederatedData, sampler: Sampler, seed: int) -> Engine:
    """An engine that follows procedure CLIENT of Algorithm 1 step by step."""
    p = work.num_domains
    loss_of = jax.jit(domain_loss, static_argnums=(0, 3))
    step = jax.jit(local_step, static_argnums=0)

    def batch_of(rows: np.ndarray) -> Batch:
        return jax.tree.map(jnp.asarray, take(data, rows, np.ones(len(rows), np.float32)))

    def one_client(sent: Broadcast, t: int, client: int) -> Any:
        params, alpha, channel = sent
        size = int(data.sizes_of(np.array([client]))[0])
        order = example_order(seed, t, np.array([client]), np.array([size]), size)[0]
        rows = data.offsets[client] + order
        everything = batch_of(rows)
        count = domain_count(everything, p)
        loss = loss_of(work.model, params, everything, p)
        beta = client_weight(alpha, count)
        batches = [
            batch_of(rows[start : start + work.batch_size])
            for start in range(0, size, work.batch_size)
        ]
        trained, opt_state = params, work.optimizer.init(params)
        key = client_key(seed, t, client)
        every = itertools.product(range(work.epochs), range(len(batches)))
        for epoch, number in itertools.islice(every, work.local_steps):
            batch, k = batches[number], step_key(key, epoch, number)
            trained, opt_state = step(work, trained, opt_state, batch, alpha, beta, k)
        sums = contribution(params, trained, beta, loss, count)
        return sent_by_client(work.channel, channel, sums, key)

    def sum_over_clients(sent: Broadcast, cohort: Cohort) -> Any:
        sums = [one_client(sent, cohort.round, int(k)) for k in cohort.clients]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *sums)

    return Engine(
        cohort=lambda t: Cohort(t, sampler(t)),
        sum_over_clients=sum_over_clients,
        compile=lambda round: round,
        settings={"engine": "reference"},
    )
