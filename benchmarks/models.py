# SPDX-License-Identifier: Apache-2.0
"""Other forms of the LSTM's time loop, to be timed beside the package's own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.model import Model, from_functions


def lstm(run: Callable[[Any, Array], Array]) -> Model:
    """The layers of `agnosticfl.models.lstm` as plain functions, around the time loop `run`."""
    words, embedding, units = 10_004, 96, 670
    shapes = {
        "embed": (words, embedding),
        "wx": (embedding, 4 * units),
        "wh": (units, 4 * units),
        "d1": (units, embedding),
        "d2": (embedding, words),
    }

    def loss(w: Any, examples: Any) -> Array:
        inputs, targets = examples["tokens"][:, :-1], examples["tokens"][:, 1:]
        z = w["embed"][inputs] @ w["wx"] + _row(w["b_wx"], 3)
        hidden = run(w["wh"], z.swapaxes(0, 1)).swapaxes(0, 1)
        hidden = hidden @ w["d1"] + _row(w["b_d1"], 3)
        losses = _cross_entropy(hidden @ w["d2"] + _row(w["b_d2"], 3), targets)
        word = (targets > 0).astype(losses.dtype)
        return jnp.sum(losses * word, -1) / jnp.maximum(jnp.sum(word, -1), 1)

    return from_functions(lambda key: _glorot(key, shapes), loss)


def time_loop(wh: Array, z: Array, unroll: int = 1) -> Array:
    """The hidden states of an LSTM, [T, B, H], from its inputs' part of the gates, [T, B, 4H]."""
    start = jnp.zeros((z.shape[1], wh.shape[0]))

    def step(carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, memory = carry
        _, hidden, memory = gates(now + hidden @ wh, memory)
        return (hidden, memory), hidden

    return jax.lax.scan(step, (start, start), z, unroll=unroll)[1]


def gates(z: Array, memory: Array) -> tuple[tuple[Array, ...], Array, Array]:
    """One time step after its matrix product: the gates, the hidden state, the memory."""
    i, f, g, o = jnp.split(z, 4, -1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f + 1), jnp.tanh(g), jax.nn.sigmoid(o)
    memory = f * memory + i * g
    return (i, f, g, o), o * jnp.tanh(memory), memory


def stacked_time_loop(unroll: int = 1) -> Callable[[Array, Array], Array]:
    """`time_loop` with the gradient of the recurrent weights as one product over all time steps.

    Autodiff adds |W_h| numbers to memory at every time step; this keeps the gates' gradients and
    multiplies once.
    """

    @jax.custom_vjp
    def run(wh: Array, z: Array) -> Array:
        return time_loop(wh, z, unroll)

    def forward(wh: Array, z: Array) -> tuple[Array, Any]:
        start = jnp.zeros((z.shape[1], wh.shape[0]))

        def step(carry: Any, now: Array) -> Any:
            hidden, memory = carry
            gate, new_hidden, new_memory = gates(now + hidden @ wh, memory)
            return (new_hidden, new_memory), (gate, hidden, memory, new_hidden, new_memory)

        _, (gate, before, memory, hidden, after) = jax.lax.scan(
            step, (start, start), z, unroll=unroll
        )
        return hidden, (wh, gate, before, memory, after)

    def backward(kept: Any, d_hidden: Array) -> tuple[Array, Array]:
        wh, gate, before, memory, after = kept

        def step(carry: Any, now: Any) -> Any:
            d_h, d_m = carry
            (i, f, g, o), old, new, d_out = now
            d_h = d_h + d_out
            t = jnp.tanh(new)
            d_m = d_m + d_h * o * (1 - t * t)
            parts = (
                d_m * g * i * (1 - i),
                d_m * old * f * (1 - f),
                d_m * i * (1 - g * g),
                d_h * t * o * (1 - o),
            )
            d_z = jnp.concatenate(parts, -1)
            return (d_z @ wh.T, d_m * f), d_z

        zero = jnp.zeros_like(d_hidden[0])
        _, d_z = jax.lax.scan(
            step, (zero, zero), (gate, memory, after, d_hidden), reverse=True, unroll=unroll
        )
        return jnp.einsum("tbh,tbg->hg", before, d_z), d_z

    run.defvjp(forward, backward)
    return run


def _glorot(key: Array, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Weights, and a bias `b_NAME` for each but an embedding and the recurrent weights."""
    normal = jax.nn.initializers.glorot_normal()
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    biased = {name: shape for name, shape in shapes.items() if name not in ("embed", "wh")}
    return weights | {f"b_{name}": jnp.zeros(shape[-1]) for name, shape in biased.items()}


def _row(bias: Array, rank: int) -> Array:
    return bias.reshape((1,) * (rank - 1) + bias.shape)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen
