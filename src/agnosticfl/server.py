# SPDX-License-Identifier: Apache-2.0
"""The server's side: its state, the window of counts, α, and the step that gives w_t."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from agnosticfl import tree
from agnosticfl.errors import check
from agnosticfl.weights import WeightRule, check_domain_weights


class Window(NamedTuple):
    """The last r domain counts, N_{t-r} … N_{t-1}."""

    counts: Array  # [r, p], the oldest first
    mean: Array  # [p] their mean; of a domain absent from all r, its last mean that was not 0


class ServerState(NamedTuple):
    """What the server carries from round to round, and what a checkpoint holds."""

    params: Any  # w_t
    opt_state: Any  # of the server optimizer
    domain_weights: Array  # [p] λ_t
    rule_state: Any  # of the weight rule (log λ_t for exponentiated gradient)
    window: Window
    round: Array  # t, the number of rounds done
    channel: Any = ()  # state of the channel, sent down with w and α


def init_state(
    params: Any,
    server_optimizer: optax.GradientTransformation,
    weight_rule: WeightRule,
    num_domains: int,
    window_size: int,
    domain_weights: Sequence[float] | None = None,
    domain_count: Sequence[float] | None = None,
    channel: Any = (),
) -> ServerState:
    """The state before round 1.

    Args:
      params: w_0.
      domain_weights: λ_0; uniform if None.
      domain_count: N_0, with which the window of `window_size` (r) starts; ones if None.
      channel: the channel's first state.
    """
    check(num_domains >= 1, f"number of domains (p) is {num_domains}; it must be at least 1")
    check(window_size >= 1, f"window size (r) is {window_size}; it must be at least 1")
    uniform = np.full(num_domains, 1 / num_domains)
    weights = check_domain_weights(
        uniform if domain_weights is None else domain_weights, num_domains
    )
    count = np.ones(num_domains) if domain_count is None else np.asarray(domain_count, np.float64)
    check(
        count.shape == (num_domains,)
        and bool(np.all(np.isfinite(count) & (count > tree.SMALLEST))),
        f"first domain counts (N_0) are {count.tolist()};"
        f" they must be {num_domains} numbers above 0",
    )
    first = jnp.asarray(count, jnp.float32)
    return ServerState(
        params=params,
        opt_state=server_optimizer.init(params),
        domain_weights=jnp.asarray(weights),
        rule_state=weight_rule.init(jnp.asarray(weights)),
        window=Window(jnp.tile(first, (window_size, 1)), first),
        round=jnp.zeros((), jnp.int32),
        channel=channel,
    )


def domain_scaling(domain_weights: Array, mean_count: Array) -> Array:
    """α_i = λ_i / (Σ_{j=t-r}^{t-1} N_{j,i} / r)."""
    return domain_weights / mean_count


def mean_domain_loss(domain_loss: Array, domain_count: Array) -> Array:
    """L_i = Σ_k L^k_i / N_i, and 0 for an absent domain. A sum that overflowed stays finite."""
    return jnp.nan_to_num(tree.divide(domain_loss, domain_count))


def push(window: Window, count: Array) -> Window:
    """Forgets the oldest count and takes N_t."""
    counts = jnp.concatenate([window.counts[1:], count[None]])
    mean = jnp.mean(counts, axis=0)
    return Window(counts, jnp.where(mean > 0, mean, window.mean))


def server_step(
    optimizer: optax.GradientTransformation, delta: Any, beta: Array, state: ServerState
) -> tuple[Any, Any, Array]:
    """w_t and the optimizer's state from the mean update, and whether the step was taken.

    `delta` points from the new weights to the old ones, so it takes the gradient's place and
    `optax.sgd(1.0)` gives the paper's Σ_k β^k w^k / Σ_k β^k. Without any weight (Σ_k β^k = 0), or
    if the result would not be finite, everything stays as it was.
    """
    updates, opt_state = optimizer.update(delta, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    taken = (beta > 0) & tree.all_finite((params, opt_state))
    params, opt_state = tree.select(taken, (params, opt_state), (state.params, state.opt_state))
    return params, opt_state, taken
