# SPDX-License-Identifier: Apache-2.0
"""The client's side of Algorithm 1: L^k, N^k, β^k, local training, and what is sent back.

One formula, one small function on one batch or one client; engines loop, vmap or shard over them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from agnosticfl import tree
from agnosticfl.channel import PLAIN, Channel, ClientSum
from agnosticfl.data.federated import FederatedData
from agnosticfl.errors import check, choose
from agnosticfl.model import Examples, Model, Params


class Batch(NamedTuple):
    """B examples with their domains. A smaller batch is filled up and the filling masked."""

    examples: Examples  # name -> [B, ...]
    domain: Array  # [B] int32, in 0 … p−1
    mask: Array  # [B] 1 for an example, 0 for filling


class ClientWork(NamedTuple):
    """What a client does in a round, the same for all clients and rounds."""

    model: Model
    optimizer: optax.GradientTransformation  # with rate γ_w
    num_domains: int  # p
    batch_size: int  # B
    epochs: int = 1  # E
    normalisation: str = "client"  # of the local loss, see `local_loss`
    channel: Channel = PLAIN  # what is done to a contribution before it is sent
    local_steps: int | None = None  # at most so many; all of E epochs if None


def take(data: FederatedData, rows: np.ndarray, mask: np.ndarray) -> Batch:
    """The examples with the numbers `rows`, an array of any shape, as (stacked) batches."""
    arrays: Any = ({k: v[rows] for k, v in data.examples.items()}, data.domain[rows], mask)
    return Batch(*arrays)


def check_work(work: ClientWork) -> ClientWork:
    """Returns `work`, or says which of its values is not allowed."""
    check(work.num_domains >= 1, f"number of domains (p) is {work.num_domains}; must be ≥ 1")
    check(work.batch_size >= 1, f"batch size (B) is {work.batch_size}; it must be at least 1")
    check(work.epochs >= 1, f"epochs (E) is {work.epochs}; it must be at least 1")
    choose(work.normalisation, ("client", "batch"), "normalisation")
    limit = work.local_steps
    check(limit is None or limit >= 1, f"local steps is {limit}; it must be at least 1")
    return work


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
    work: ClientWork, params: Params, batch: Batch, alpha: Array, beta: Array, key: Array
) -> Array:
    """Σ_i α_i Σ_{j ∈ b ∩ D_i} L(w, x_j, y_j) / β.

    With `normalisation="client"`, β is β^k of all the client's examples (the paper's): a step is
    then about |b| / n_k of what FedAvg would do, and the client's rate must be larger to match.
    With `"batch"`, β is the same sum over this batch, so equal α give the plain mean over the batch
    and FedAvg's rates carry over.
    """
    weight = batch.mask * alpha[batch.domain]
    if work.normalisation == "batch":
        beta = jnp.sum(weight)
    loss = work.model.per_example_loss(params, batch.examples, key)
    return jnp.sum(tree.divide(weight, beta) * jnp.where(batch.mask > 0, loss, 0))


def local_step(
    work: ClientWork,
    params: Params,
    opt_state: Any,
    batch: Batch,
    alpha: Array,
    beta: Array,
    key: Array,
) -> tuple[Params, Any]:
    """w ← w − γ_w ∇ local_loss, with any optimizer in gradient descent's place."""
    gradient = jax.grad(local_loss, argnums=1)(work, params, batch, alpha, beta, key)
    updates, opt_state = work.optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def proximal(strength: float) -> optax.GradientTransformation:
    """Adds μ (w − w_{t-1}) to the gradient, before an optimizer: FedProx (Li et al. 2020).

    It is the gradient of μ/2 ‖w − w_{t-1}‖², which holds clients near the model that they got. A
    client's optimizer starts at w_{t-1}, so its first parameters are those to stay near.

    Args:
      strength: μ.
    """
    check(
        np.isfinite(strength) and strength >= 0,
        f"proximal strength (μ) is {strength}; it must be a number ≥ 0",
    )

    def update(updates: Params, state: Params, params: Params | None = None) -> Any:
        pull = tree.scale(jnp.float32(strength), tree.subtract(params, state))
        return tree.add(updates, pull), state

    return optax.GradientTransformation(lambda params: params, update)


def shrinking(strength: float) -> optax.GradientTransformation:
    """Adds ρ w to the gradient, that of ρ/2 ‖w‖²: less of a small domain is memorised.

    Args:
      strength: ρ.
    """
    check(
        np.isfinite(strength) and strength >= 0,
        f"l2 strength (ρ) is {strength}; it must be a number ≥ 0",
    )
    return optax.add_decayed_weights(strength)


def num_steps(work: ClientWork, size: Any) -> Any:
    """Local steps of a client with n_k = `size` examples: E⌈n_k/B⌉, or its limit if that is less.

    `size` is a NumPy or JAX integer, or an array of them.
    """
    steps = work.epochs * -(-size // work.batch_size)
    return steps if work.local_steps is None else steps.clip(max=work.local_steps)


def step_key(client_key: Array, epoch: int | Array, step: int | Array) -> Array:
    """The random key of one local step."""
    return jax.random.fold_in(jax.random.fold_in(client_key, epoch), step)


def weighted_delta(params: Params, trained: Params, beta: Array) -> Params:
    """β^k (w_{t-1} − w^k)."""
    return tree.scale(beta, tree.subtract(params, trained))


def contribution_shapes(model: Model, num_domains: int) -> ClientSum:
    """Shapes and types of what a client contributes, for the builder of a channel."""

    def zeros() -> ClientSum:
        one, each = jnp.zeros(()), jnp.zeros(num_domains)
        return ClientSum(model.init(jax.random.key(0)), one, each, each, one)

    return jax.eval_shape(zeros)


def contribution(
    params: Params, trained: Params, beta: Array, loss: Array, count: Array
) -> ClientSum:
    """What client k adds to the sum."""
    delta = weighted_delta(params, trained, beta)
    return usable(ClientSum(delta, beta, loss, count, jnp.zeros(())))


def usable(sums: ClientSum) -> ClientSum:
    """A contribution, or nothing at all in its place if any number of it is not finite."""
    nothing = jax.tree.map(jnp.zeros_like, sums)._replace(left_out=jnp.ones(()))
    return tree.select(tree.all_finite(sums), sums, nothing)


def client_sum(
    work: ClientWork, params: Params, alpha: Array, batches: Batch, key: Array
) -> ClientSum:
    """Procedure CLIENT(k, w, α) for one client whose batches are stacked, [steps, B, …].

    Batches that are all filling change nothing, so clients of different sizes can be stacked.
    """
    p = work.num_domains
    count = jax.vmap(lambda b: domain_count(b, p))(batches).sum(0)
    loss = jax.vmap(lambda b: domain_loss(work.model, params, b, p))(batches).sum(0)
    beta = client_weight(alpha, count)
    real = jnp.any(batches.mask > 0, axis=1)
    limit = num_steps(work, jnp.sum(batches.mask).astype(jnp.int32))

    def step(carry: Any, inputs: Any) -> tuple[Any, None]:
        (params, opt_state), (batch, key, wanted) = carry, inputs
        new = local_step(work, params, opt_state, batch, alpha, beta, key)
        return tree.select(wanted, new, carry), None

    def epoch(carry: Any, number: Array) -> tuple[Any, None]:
        steps = jnp.arange(len(real))
        keys = jax.vmap(lambda s: step_key(key, number, s))(steps)
        wanted = real & (number * jnp.sum(real) + steps < limit)
        return jax.lax.scan(step, carry, (batches, keys, wanted))[0], None

    start = (params, work.optimizer.init(params))
    (trained, _), _ = jax.lax.scan(epoch, start, jnp.arange(work.epochs))
    return contribution(params, trained, beta, loss, count)
