# SPDX-License-Identifier: Apache-2.0
"""The sum over a cohort, by any engine."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl import from_nnx
from agnosticfl.core import sampling
from agnosticfl.core.contribution import Broadcast, ClientSum
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Model
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import EngineBuilder


class DropoutNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(1, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.last(self.dropout(jnp.tanh(self.first(x[:, None]))))[:, 0]


@functools.cache
def with_dropout() -> Model:
    """A model whose training is random."""
    return from_nnx(DropoutNet, lambda net, e: jnp.square(net(e["x"]) - e["x"]))


def sums(
    engine: EngineBuilder, work: ClientWork, data: FederatedData, cohort: int, seed: int
) -> ClientSum:
    """The sum over the clients of one round, as `engine` computes it."""
    sampler = sampling.uniform(data.num_clients, cohort, seed)
    seam = engine(work, data, sampler, seed)
    params = jax.jit(work.model.init)(jax.random.key(seed))
    alpha = jnp.linspace(0.1, 0.5, work.num_domains)
    sent = Broadcast(params, alpha)
    return seam.compile(seam.sum_over_clients)(sent, seam.cohort(seed % 7 + 1))
