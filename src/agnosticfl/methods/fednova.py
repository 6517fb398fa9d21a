# SPDX-License-Identifier: Apache-2.0
"""FedNova (Wang et al. 2020): clients that take more local steps do not count more for it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import PLAIN, ChannelBuilder, chain, plain
from agnosticfl.core.contribution import ChannelState, ClientSum
from agnosticfl.core.work import ClientWork, num_steps
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import Algorithm, Parts, method
from agnosticfl.methods.fedavg import UNIFORM


@method("fednova", title="FedNova", paper="Wang et al. 2020", settings=UNIFORM, like="fedavg")
def fednova(parts: Parts) -> Algorithm:
    """FedAvg of updates per local step: w − τ̄ Σ_k p_k Δ^k / τ_k.

    τ_k is the number of a client's local steps, for plain SGD: with momentum or a proximal term the
    paper's τ_k is another. τ̄ is the paper's τ_eff, Σ_k n_k τ_k / Σ_k n_k, of all clients rather
    than of those of a round. Python users who give a weight rule get the same for AFA.
    """
    sizes = parts.data.sizes.astype(int)
    mean = float(np.sum(sizes * num_steps(parts.work, sizes)) / max(np.sum(sizes), 1))
    channel = chain(per_step(parts.work, mean), parts.channel or plain)
    return agnostic_rounds(dataclasses.replace(parts, channel=channel))


def per_step(work: ClientWork, mean_steps: float) -> ChannelBuilder:
    """β^k Δ^k ← β^k Δ^k τ̄ / τ_k, before it is sent."""

    def encode(state: ChannelState, sent: ClientSum, key: Array) -> ClientSum:
        del state, key
        steps = num_steps(work, jnp.sum(sent.domain_count).astype(jnp.int32))
        factor = tree.divide(jnp.float32(mean_steps), steps.astype(jnp.float32))
        return sent._replace(weighted_delta=tree.scale(factor, sent.weighted_delta))

    return lambda _: PLAIN._replace(encode=encode)
