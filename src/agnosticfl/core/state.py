# SPDX-License-Identifier: Apache-2.0
"""What the server carries from round to round, and what a round reports."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import ChannelReport
from agnosticfl.core.contribution import ChannelState
from agnosticfl.core.model import Params
from agnosticfl.core.programs import program_of
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import RuleState, WeightRule, check_domain_weights
from agnosticfl.errors import check


class Window(NamedTuple):
    """The last r domain counts, N_{t-r} … N_{t-1}."""

    counts: Array  # [r, p], the oldest first
    mean: Array  # [p] their mean; of a domain absent from all r, its last mean that was not 0


class ServerState(NamedTuple):
    """What the server carries from round to round, and what a checkpoint holds."""

    params: Params  # w_t
    opt_state: PyTree  # of the server optimizer
    domain_weights: Array  # [p] λ_t
    rule_state: RuleState  # of the weight rule (log λ_t for exponentiated gradient)
    window: Window
    round: Array  # t, the number of rounds done
    channel_state: ChannelState = ()  # sent down with w and α
    client_rate: Array | None = None  # γ_w where it is data, so that a search compiles once
    report_state: ChannelState | None = None  # of the channel of those who only report, if any
    mean_params: Params | None = None  # (w_1 + … + w_t) / t, where it is kept


class RoundInfo(NamedTuple):
    """What a round reports. Everything in it is made of sums over clients."""

    domain_weights: Array  # [p] λ_t, after the round
    alpha: Array  # [p] α_t, as the clients got it
    mean_domain_loss: Array  # [p] L_i at w_{t-1}, 0 where absent
    domain_count: Array  # [p] N_t
    beta: Array  # Σ_k β^k
    update_norm: Array  # ‖w_{t-1} − w_t‖
    left_out: Array  # clients whose contribution was not finite
    step_taken: Array  # False if there was nothing to step with, or the step was not finite
    weights_taken: Array  # False if the rule's λ_t was not finite: λ is as it was
    channel_report: ChannelReport  # what the channel has to say of the round
    heldout_loss: Array | None = None  # [p] L_i at w_{t-1} of held-out clients, if λ follows those
    heldout_count: Array | None = None  # [p] and how many examples they have


def init_state(
    params: Params,
    server_optimizer: optax.GradientTransformation,
    weight_rule: WeightRule,
    num_domains: int,
    window_size: int = 1,
    domain_weights: Sequence[float] | None = None,
    domain_count: Sequence[float] | None = None,
    channel_state: ChannelState = (),
) -> ServerState:
    """The state before round 1.

    Args:
      params: w_0.
      domain_weights: λ_0; uniform if None. A rule that follows the counts starts from those.
      domain_count: N_0, with which the window of `window_size` (r) starts; ones if None.
      channel_state: the channel's first state.
    """
    check(num_domains >= 1, f"number of domains (p) is {num_domains}; it must be at least 1")
    check(window_size >= 1, f"window size (r) is {window_size}; it must be at least 1")
    uniform = np.full(num_domains, 1 / num_domains)
    given = check_domain_weights(uniform if domain_weights is None else domain_weights, num_domains)
    count = np.ones(num_domains) if domain_count is None else np.asarray(domain_count, np.float64)
    check(
        count.shape == (num_domains,)
        and bool(np.all(np.isfinite(count) & (count > tree.SMALLEST))),
        f"first domain counts (N_0) are {count.tolist()};"
        f" they must be {num_domains} numbers above 0",
    )
    first = jnp.asarray(count, jnp.float32)
    weights = weight_rule.first(jnp.asarray(given), first)  # λ_0, unless it follows the counts
    return ServerState(
        params=params,
        opt_state=program_of(server_optimizer.init)(params),
        domain_weights=weights,
        rule_state=weight_rule.init(weights),
        window=Window(jnp.tile(first, (window_size, 1)), first),
        round=jnp.zeros((), jnp.int32),
        channel_state=channel_state,
    )
