# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg (Li et al. 2020): clients with a larger loss count more, whatever their domain."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl import tree
from agnosticfl.algorithm import fedavg
from agnosticfl.channel import PLAIN, ChannelBuilder, ClientSum, chain, plain
from agnosticfl.data.federated import FederatedData
from agnosticfl.errors import check
from agnosticfl.model import Model
from agnosticfl.rounds import Algorithm


def q_fedavg(
    model: Model, data: FederatedData, q: float, learning_rate: float, **options: Any
) -> Algorithm:
    """q-FedAvg with clients as the units of fairness; q = 0 is FedAvg. Options as for `fedavg`.

    Args:
      q: 0 or more; larger is fairer.
      learning_rate: γ_w of the client optimizer; 1/γ_w stands for the Lipschitz constant.
    """
    check(np.isfinite(q) and q >= 0, f"q is {q}; it must be a number ≥ 0")
    own = q_weighted(q, learning_rate)
    channel = chain(own, options.get("channel", plain))
    return fedavg(model, data, **{**options, "channel": channel})


def q_weighted(q: float, learning_rate: float) -> ChannelBuilder:
    """Turns a contribution into q-FedAvg's before it is sent.

    With the client's mean loss F = Σ_i L^k_i / Σ_i N^k_i and its update Δ = w_{t-1} − w^k, the sums
    that the server divides become

        Σ_k β^k F^q Δ   and   Σ_k β^k (F^q + q F^{q−1} ‖Δ‖² / γ_w),

    the paper's Δ_k and h_k divided by L = 1/γ_w, and weighted by β^k, the client's share of the
    examples, because clients are drawn uniformly here and by their share there.
    """

    def encode(state: Any, sent: ClientSum, key: Array) -> ClientSum:
        del state, key
        mean_loss = tree.divide(jnp.sum(sent.domain_loss), jnp.sum(sent.domain_count))
        loss = jnp.maximum(mean_loss, tree.SMALLEST)
        length = tree.divide(tree.norm(sent.weighted_delta), sent.beta)  # ‖Δ‖
        power = loss**q
        more = q * loss ** (q - 1) * length**2 / learning_rate
        weighted = sent._replace(
            weighted_delta=tree.scale(power, sent.weighted_delta), beta=sent.beta * (power + more)
        )
        nothing = jax.tree.map(jnp.zeros_like, sent)._replace(left_out=jnp.ones(()))
        return tree.select(tree.all_finite(weighted), weighted, nothing)

    return lambda _: PLAIN._replace(encode=encode)
