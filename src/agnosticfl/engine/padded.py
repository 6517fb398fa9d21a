# SPDX-License-Identifier: Apache-2.0
"""One compiled computation a round: all clients padded to the longest, side by side.

Good for small models and clients of similar size: memory is clients × |W|, and every client costs
what the longest one does.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.channel import sent_by_client
from agnosticfl.client import Batch, ClientWork, client_sum, take
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine.seam import Broadcast, Engine, client_key
from agnosticfl.sampling import Sampler, example_order


class PaddedCohort(NamedTuple):
    batches: Batch  # [clients, steps, B, ...]
    clients: Any  # C_t, [clients] int32
    round: Any  # t, int32


def padded(work: ClientWork, data: FederatedData, sampler: Sampler, seed: int) -> Engine:
    """An engine whose cohorts all have one shape, so that a round is compiled once."""
    longest = max(int(data.sizes.max()), 1)
    steps = -(-longest // work.batch_size)

    def cohort(t: int) -> PaddedCohort:
        clients = sampler(t)
        sizes = data.sizes_of(clients)
        length = steps * work.batch_size
        order = example_order(seed, t, clients, sizes, length)
        # Filling repeats a real example (of anyone, if the client has none): a model that cannot
        # take zeros is never given any. Its mask keeps it out of every sum.
        first = np.minimum(data.offsets[clients], data.num_examples - 1)
        rows = (first[:, None] + order).reshape(len(clients), steps, work.batch_size)
        mask = (np.arange(length) < sizes[:, None]).reshape(rows.shape)
        batches = take(data, rows, mask.astype(np.float32))
        return PaddedCohort(batches, clients.astype(np.int32), np.asarray(t, np.int32))

    def sum_over_clients(sent: Broadcast, cohort: PaddedCohort) -> Any:
        def one_client(batches: Batch, client: Array) -> Any:
            key = client_key(seed, cohort.round, client)
            sums = client_sum(work, sent.params, sent.alpha, batches, key)
            return sent_by_client(work.channel, sent.channel, sums, key)

        sums = jax.vmap(one_client)(cohort.batches, cohort.clients)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), sums)

    return Engine(cohort, sum_over_clients, settings={"engine": "padded"})
