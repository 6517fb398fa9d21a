# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg (Li et al. 2020): clients with a larger loss count more, whatever their domain."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import PLAIN, ChannelBuilder, chain, plain
from agnosticfl.core.contribution import ChannelState, ClientSum
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import Algorithm, Parts, method
from agnosticfl.methods.fedavg import UNIFORM
from agnosticfl.options import NotNegative, Positive, check_options, options_of


@method(
    "q-fedavg",
    title="q-FedAvg",
    paper="Li et al. 2020",
    settings={**UNIFORM, "options": {"q": 1.0}},
    like="fedavg",
    parameter=("q", "options.q"),
)
def q_fedavg(parts: Parts, *, q: NotNegative, learning_rate: Positive) -> Algorithm:
    """q-FedAvg with clients as the units of fairness; q = 0 is FedAvg.

    Args:
      q: 0 or more; larger is fairer.
      learning_rate: γ_w of the client optimizer; 1/γ_w stands for the Lipschitz constant.
    """
    channel = chain(q_weighted(q, learning_rate), parts.channel or plain)
    return agnostic_rounds(dataclasses.replace(parts, channel=channel))


def q_weighted(q: NotNegative, learning_rate: Positive) -> ChannelBuilder:
    """Turns a contribution into q-FedAvg's before it is sent.

    With the client's mean loss F = Σ_i L^k_i / Σ_i N^k_i and its update Δ = w_{t-1} − w^k, the sums
    that the server divides become

        Σ_k β^k F^q Δ   and   Σ_k β^k (F^q + q F^{q−1} ‖Δ‖² / γ_w),

    the paper's Δ_k and h_k divided by L = 1/γ_w, and weighted by β^k, the client's share of the
    examples, because clients are drawn uniformly here and by their share there.
    """

    given = {"q": q, "learning_rate": learning_rate}
    check_options(options_of(q_weighted), given, "q-FedAvg")

    def encode(state: ChannelState, sent: ClientSum, key: Array) -> ClientSum:
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
