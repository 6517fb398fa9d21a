# SPDX-License-Identifier: Apache-2.0
"""The bare loop: a round's forward passes and gradient steps, one call each, and nothing else.

Batches wait on the device, every step starts where the last one ended, and nothing is weighted,
summed or sent: what is left is the arithmetic. No simulation that calls step by step can beat it.
"""

import time
from collections.abc import Iterator
from typing import Any

import costs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl import from_arrays
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Examples, Model, Params
from agnosticfl.core.stepping import step_by_step
from agnosticfl.engines.helpers.plan import loss_batch


def federated(workload: Any) -> FederatedData:
    """The workload's arrays, as the package's models take them."""
    names = [name for name in workload.clients[0] if name != "domain_id"]
    sizes = [len(client["domain_id"]) for client in workload.clients]
    arrays = {name: np.concatenate([c[name] for c in workload.clients]) for name in names}
    if workload.name == "stackoverflow":
        arrays = {"tokens": np.concatenate([arrays["x"][:, :1], arrays["y"]], axis=1)}
    if workload.name == "emnist":
        arrays["x"] = arrays["x"][..., 0]
    return from_arrays(
        arrays,
        clients=np.repeat(np.arange(len(sizes)), sizes),
        domains=np.concatenate([client["domain_id"] for client in workload.clients]),
        domain_names=[str(i) for i in range(workload.num_domains)],
    )


def timed(workload: Any, model: Model) -> Iterator[float]:
    """Seconds of the rounds 1, 2, …; the first one has the compilation in it."""
    data, rate = federated(workload), workload.hparams["client_lr"]
    params = model.init(jax.random.key(0))

    @jax.jit
    def forward(total: Array, examples: Examples) -> Array:
        return total + jnp.sum(model.per_example_loss(params, examples, None))

    @jax.jit
    def step(carry: tuple[Params, Array], examples: Examples) -> tuple[Params, Array]:
        w, key = carry
        key, own = jax.random.split(key)
        with step_by_step():
            return descent(model, rate, w, examples, own), key

    t = 0
    while True:
        t += 1
        passes, steps = jax.device_put(_batches(workload, data, t))
        jax.block_until_ready((passes, steps))
        started = time.perf_counter()
        total, carry = jnp.zeros(()), (params, jax.random.key(t))
        for examples in passes:
            total = forward(total, examples)
        for examples in steps:
            carry = step(carry, examples)
        jax.block_until_ready((total, carry))
        yield time.perf_counter() - started


def cost_of_round(workload: Any, model: Model) -> costs.Cost:
    """FLOPs and bytes of round 1's forward passes and steps, from their own formulas."""
    passes, steps = _batches(workload, federated(workload), 1)
    params = jax.eval_shape(model.init, jax.random.key(0))

    def forward(w: Params, examples: Examples) -> Array:
        return model.per_example_loss(w, examples, None)

    def step(w: Params, examples: Examples) -> Params:
        return descent(model, 0.1, w, examples, jax.random.key(0))

    loss = costs.cost(forward, params, passes[0]).times(len(passes))
    return loss + costs.cost(step, params, steps[0]).times(len(steps))


def descent(model: Model, rate: float, w: Params, examples: Examples, key: Array) -> Params:
    """One step of gradient descent on a batch's mean loss."""
    gradient = jax.grad(lambda w: jnp.mean(model.per_example_loss(w, examples, key)))(w)
    return jax.tree.map(lambda leaf, g: leaf - rate * g, w, gradient)


def _batches(workload: Any, data: FederatedData, t: int) -> tuple[list[Examples], list[Examples]]:
    """The batches of round t's forward passes over all clients, and of their steps; all full."""
    clients = workload.round_clients(t)
    rows = [np.arange(*data.offsets[k : k + 2].tolist()) for k in clients]
    size = workload.hparams["batch_size"]
    return (
        cut(data, np.concatenate(rows), loss_batch()),
        [batch for own in rows for batch in cut(data, own, size)],
    )


def cut(data: FederatedData, rows: np.ndarray, size: int) -> list[Any]:
    """Batches of these examples; the last one is filled up with the first ones."""
    rows = np.resize(rows, -(-len(rows) // size) * size).reshape(-1, size)
    return [{name: array[part] for name, array in data.examples.items()} for part in rows]
