# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1, Agnostic Federated Averaging (Ro et al. 2021), from top to bottom.

`agnostic_round` is the body of procedure SERVER's loop over rounds t, `client` is procedure CLIENT,
and each formula between them is one small function, on one batch or one client. Engines loop, vmap
or shard over the client's half; `engines.reference` calls `client` itself and is the oracle for all
others. docs/algorithm.md goes through it line by line.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.channel import PLAIN, Channel, with_bounded_alpha, with_unit_alpha
from agnosticfl.core.contribution import Broadcast, ClientSum, SumOverClients, Total, usable
from agnosticfl.core.model import Model, Params
from agnosticfl.core.programs import Program
from agnosticfl.core.random import server_key, step_key
from agnosticfl.core.state import RoundInfo, ServerState, Window
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import DomainStats, WeightRule
from agnosticfl.core.work import Batch, ClientWork, local_start

C = TypeVar("C")  # a cohort, as one engine lays it out

# --- procedure SERVER -----------------------------------------------------------------------------


def agnostic_round(
    sum_over_clients: SumOverClients[C],
    server_optimizer: optax.GradientTransformation,
    weight_rule: WeightRule,
    channel: Channel = PLAIN,
    seed: int = 0,
) -> Callable[[ServerState, C], tuple[ServerState, RoundInfo]]:
    """Procedure SERVER of Algorithm 1: the body of its loop over rounds t."""

    def after_sum(
        state: ServerState, alpha: Array, total: ClientSum
    ) -> tuple[ServerState, RoundInfo]:
        state, info = step_model(server_optimizer, state, alpha, total)  # w_t, N_{t-r+1} … N_t
        loss = mean_domain_loss(total.domain_loss, total.domain_count)  # L = Σ_k L^k / N_t
        state, taken = step_weights(weight_rule, state, loss, total.domain_count)  # λ_t
        return state, info._replace(domain_weights=state.domain_weights, weights_taken=taken)

    return one_exchange(sum_over_clients, after_sum, channel, seed)


def one_exchange(
    sum_over_clients: SumOverClients[C],
    after_sum: Callable[[ServerState, Array, ClientSum], tuple[ServerState, RoundInfo]],
    channel: Channel = PLAIN,
    seed: int = 0,
) -> Callable[[ServerState, C], tuple[ServerState, RoundInfo]]:
    """w and α go down, Σ_k (β^k Δ^k, β^k, L^k, N^k) comes up; what then is `after_sum`'s."""
    scaling = with_bounded_alpha(domain_scaling, channel)
    if channel.unit_alpha:
        sum_over_clients, channel = with_unit_alpha(sum_over_clients, channel)

    def round(state: ServerState, cohort: C) -> tuple[ServerState, RoundInfo]:
        alpha = scaling(state.domain_weights, state.window.mean)  # α = λ / mean_r N
        sent = Broadcast(state.params, alpha, state.channel_state, state.client_rate)
        encoded = sum_over_clients(sent, cohort)
        return server_half(state, alpha, encoded)

    @Program  # a part of the compiled round, or compiled by itself where clients are not
    def server_half(
        state: ServerState, alpha: Array, encoded: Total
    ) -> tuple[ServerState, RoundInfo]:
        key = server_key(seed, state.round + 1)
        total, channel_state, report = channel.decode(state.channel_state, encoded, key)
        after, info = after_sum(state, alpha, total)  # `total` is Σ_k (β^k Δ^k, β^k, L^k, N^k)
        return after._replace(channel_state=channel_state), info._replace(channel_report=report)

    return round


def step_model(
    optimizer: optax.GradientTransformation, state: ServerState, alpha: Array, total: ClientSum
) -> tuple[ServerState, RoundInfo]:
    """The half of a round that gives w_t and the window; λ is still λ_{t-1}."""
    delta = mean_update(total)  # Σ_k β^k Δ^k / Σ_k β^k
    params, opt_state, taken = server_step(optimizer, delta, total.beta, state)  # w_t
    window = push(state.window, total.domain_count)  # N_{t-r+1} … N_t
    info = RoundInfo(
        domain_weights=state.domain_weights,
        alpha=alpha,
        mean_domain_loss=mean_domain_loss(total.domain_loss, total.domain_count),
        domain_count=total.domain_count,
        beta=total.beta,
        update_norm=tree.norm(tree.subtract(state.params, params)),
        left_out=total.left_out,
        step_taken=taken,
        weights_taken=jnp.ones((), bool),
        channel_report={},
    )
    t = state.round + 1
    mean = mean_params(state.mean_params, params, t)  # w̄_t
    after = state._replace(
        params=params, opt_state=opt_state, window=window, round=t, mean_params=mean
    )
    return after, info


def step_weights(
    weight_rule: WeightRule, state: ServerState, mean_loss: Array, count: Array
) -> tuple[ServerState, Array]:
    """The half of a round that gives λ_t, from what was measured and on how many examples.

    A λ_t that is not finite would leave every client out of all rounds to come: then λ and the
    rule's state stay as they were, as w does in `server_step`, and what comes second is False.
    """
    stats = DomainStats(mean_loss, count, state.window.mean)
    weights, rule_state = weight_rule.update(state.rule_state, stats)  # λ_t ∝ λ exp(γ_λ L)
    before = state.domain_weights, state.rule_state
    taken = tree.all_finite(weights)
    weights, rule_state = tree.select(taken, (weights, rule_state), before)
    return state._replace(domain_weights=weights, rule_state=rule_state), taken


# --- the server's formulas ------------------------------------------------------------------------


def domain_scaling(domain_weights: Array, mean_count: Array) -> Array:
    """α_i = λ_i / (Σ_{j=t-r}^{t-1} N_{j,i} / r)."""
    return domain_weights / mean_count


def mean_update(total: ClientSum) -> Params:
    """Σ_k β^k Δ^k / Σ_k β^k; 0 if nobody has any weight."""
    share = tree.divide(jnp.ones_like(total.beta), total.beta)
    return tree.scale(share, total.weighted_delta)


def mean_domain_loss(domain_loss: Array, domain_count: Array) -> Array:
    """L_i = Σ_k L^k_i / N_i, and 0 for an absent domain. A sum that overflowed stays finite."""
    return jnp.nan_to_num(tree.divide(domain_loss, domain_count))


def push(window: Window, count: Array) -> Window:
    """Forgets the oldest count and takes N_t."""
    counts = jnp.concatenate([window.counts[1:], count[None]])
    mean = jnp.mean(counts, axis=0)
    return Window(counts, jnp.where(mean > 0, mean, window.mean))


def mean_params(before: Params | None, params: Params, t: Array) -> Params | None:
    """w̄_t = w̄_{t-1} + (w_t − w̄_{t-1}) / t, where it is kept."""
    if before is None:
        return None
    share = 1 / t.astype(jnp.float32)
    return tree.add(before, tree.scale(share, tree.subtract(params, before)))


def server_step(
    optimizer: optax.GradientTransformation, delta: Params, beta: Array, state: ServerState
) -> tuple[Params, PyTree, Array]:
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


# --- procedure CLIENT -----------------------------------------------------------------------------


def client(
    work: ClientWork,
    params: Params,
    alpha: Array,
    examples: Batch,
    batches: Sequence[Batch],
    key: Array,
    loss_of: Callable[[Model, Params, Batch, int], Array] | None = None,
    step: Callable[..., tuple[Params, PyTree]] | None = None,
    rate: Array | None = None,
) -> ClientSum:
    """Procedure CLIENT(k, w, α), one batch after another.

    Args:
      examples: S_k, all of the client's examples.
      batches: the same, shuffled and split into batches of size B.
      loss_of, step: `domain_loss` and `local_step`, if they come compiled.
      rate: γ_w, if it was sent; see `local_start`.
    """
    loss_of, step, p = loss_of or domain_loss, step or local_step, work.num_domains
    count = domain_count(examples, p)  # N^k
    loss = loss_of(work.model, params, examples, p)  # L^k
    beta, size = client_weight(alpha, count), jnp.sum(count)  # β^k, n_k
    trained, opt_state = local_start(work, params, rate)
    every = itertools.product(range(work.epochs), range(len(batches)))
    for epoch, number in itertools.islice(every, work.local_steps):
        own = step_key(key, epoch, number)
        trained, opt_state = step(work, trained, opt_state, batches[number], alpha, beta, size, own)
    return contribution(params, trained, beta, loss, count)


# --- the client's formulas ------------------------------------------------------------------------


def domain_count(batch: Batch, num_domains: int) -> Array:
    """N^k_i = |S_k ∩ D_i|, [p]."""
    return jax.ops.segment_sum(batch.mask, batch.domain, num_domains)


def domain_loss(model: Model, params: Params, batch: Batch, num_domains: int) -> Array:
    """L^k_i = |S_k ∩ D_i| · L(w, S_k ∩ D_i), [p]: the sum of losses, with dropout off."""
    loss = model.per_example_loss(params, batch.examples, None)
    loss = jnp.where(batch.mask > 0, loss, 0)
    return jax.ops.segment_sum(loss, batch.domain, num_domains)


def client_weight(alpha: Array, count: Array) -> Array:
    """β^k = Σ_i α_i |S_k ∩ D_i|."""
    return jnp.sum(alpha * count)


def local_loss(
    work: ClientWork,
    params: Params,
    batch: Batch,
    alpha: Array,
    beta: Array,
    size: Array,
    key: Array,
) -> Array:
    """Σ_i α_i Σ_{j ∈ b ∩ D_i} L(w, x_j, y_j), divided as `work.normalisation` says.

    `"client"`: by β^k of all the client's examples (the paper's). A step is then about |b| / n_k of
    what FedAvg would do, and the client's rate must be larger to match.
    `"unbiased"`: by β^k |b| / n_k. The mean over all batches is the client's own weighted loss, as
    with `"client"`, and equal α give the plain mean over the batch, so FedAvg's rates carry over.
    `"batch"`: by the same sum as β^k over this batch alone. FedAvg's rates carry over too, but what
    a batch divides by depends on what it holds: where batches mix domains, small batches bend λ
    towards the counts.

    Args:
      beta, size: β^k and n_k, of all the client's examples.
    """
    weight = batch.mask * alpha[batch.domain]
    if work.normalisation == "batch":
        beta = jnp.sum(weight)
    elif work.normalisation == "unbiased":
        beta = tree.divide(beta * jnp.sum(batch.mask), size)
    loss = work.model.per_example_loss(params, batch.examples, key)
    return jnp.sum(tree.divide(weight, beta) * jnp.where(batch.mask > 0, loss, 0))


def local_step(
    work: ClientWork,
    params: Params,
    opt_state: PyTree,
    batch: Batch,
    alpha: Array,
    beta: Array,
    size: Array,
    key: Array,
) -> tuple[Params, PyTree]:
    """w ← w − γ_w ∇ local_loss, with any optimizer in gradient descent's place."""
    gradient = jax.grad(local_loss, argnums=1)(work, params, batch, alpha, beta, size, key)
    updates, opt_state = work.optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def weighted_delta(params: Params, trained: Params, beta: Array) -> Params:
    """β^k (w_{t-1} − w^k)."""
    return tree.scale(beta, tree.subtract(params, trained))


def contribution(
    params: Params, trained: Params, beta: Array, loss: Array, count: Array
) -> ClientSum:
    """What client k adds to the sum."""
    delta = weighted_delta(params, trained, beta)
    return usable(ClientSum(delta, beta, loss, count, jnp.zeros(())))
