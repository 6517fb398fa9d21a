# SPDX-License-Identifier: Apache-2.0
"""The reference: one client after another, one batch after another, nothing padded or masked.

Slow and obviously right. Every other engine must give the same `ClientSum`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.core.algorithm1 import client, domain_loss, local_step
from agnosticfl.core.channel import sent_by_client
from agnosticfl.core.contribution import Broadcast, Total
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.random import client_key, example_order
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.tree import PyTree
from agnosticfl.core.work import Batch, ClientWork, take
from agnosticfl.engines.base import Cohort, Engine, as_it_is, check_one_process
from agnosticfl.registry import ENGINES


@ENGINES.add("reference")
def reference_engine(
    work: ClientWork, data: FederatedData, sampler: Sampler, seed: int
) -> Engine[Cohort]:
    """An engine that goes through procedure CLIENT of Algorithm 1, client after client."""
    check_one_process("reference")
    loss_of = jax.jit(domain_loss, static_argnums=(0, 3))
    step = jax.jit(local_step, static_argnums=0)

    def batch_of(rows: np.ndarray) -> Batch:
        return jax.tree.map(jnp.asarray, take(data, rows, np.ones(len(rows), np.float32)))

    def one_client(sent: Broadcast, t: int, k: int) -> PyTree:
        size = int(data.sizes_of(np.array([k]))[0])
        order = example_order(seed, t, np.array([k]), np.array([size]), size)[0]
        rows = data.offsets[k] + order
        batches = [
            batch_of(rows[start : start + work.batch_size])
            for start in range(0, size, work.batch_size)
        ]
        key = client_key(seed, t, k)
        w, alpha, rate = sent.params, sent.alpha, sent.client_rate
        own = client(work, w, alpha, batch_of(rows), batches, key, loss_of, step, rate)
        return sent_by_client(work.channel, sent.channel_state, own, key)

    def sum_over_clients(sent: Broadcast, cohort: Cohort) -> Total:
        sums = [one_client(sent, cohort.round, int(k)) for k in cohort.clients]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *sums)

    return Engine(
        cohort=lambda t: Cohort(t, sampler(t)),
        sum_over_clients=sum_over_clients,
        compile=as_it_is,
        choices={"engine": "reference"},
    )
