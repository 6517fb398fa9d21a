# SPDX-License-Identifier: Apache-2.0
"""The peers' models as plain functions, so that a benchmark needs no neural-network library."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.model import Model, from_functions, no_metrics

Convolution = Callable[[Array, Array], Array]


def convolution(x: Array, weights: Array) -> Array:
    """Valid convolution by the library of the device."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (1, 1), "VALID", dimension_numbers=layout)


def patches_times_weights(x: Array, weights: Array) -> Array:
    """The same as a matrix product: on lanes a batched one instead of a grouped convolution."""
    kh, kw, channels, features = weights.shape
    height, width = x.shape[1] - kh + 1, x.shape[2] - kw + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(kh) for j in range(kw)]
    return jnp.concatenate(shifted, -1) @ weights.reshape(kh * kw * channels, features)


def point() -> Model:
    """One number, (x − w)²."""
    return from_functions(lambda _: {"w": jnp.float32(0)}, lambda w, e: jnp.square(e["x"] - w["w"]))


def cnn(conv: Convolution = convolution) -> Model:
    """EMNIST's: two convolutions, a pool, two dense layers, dropout; 1,206,590 parameters."""
    shapes = {"c1": (3, 3, 1, 32), "c2": (3, 3, 32, 64), "d1": (9216, 128), "d2": (128, 62)}

    def loss(w: Any, examples: Any, key: Array | None) -> Array:
        x = jax.nn.relu(conv(examples["x"], w["c1"]) + _row(w["b_c1"], 4))
        x = jax.nn.relu(conv(x, w["c2"]) + _row(w["b_c2"], 4))
        x = x.reshape(len(x), 12, 2, 12, 2, 64).max((2, 4)).reshape(len(x), -1)
        x = _dropout(x, 0.25, key, 0)
        x = _dropout(jax.nn.relu(x @ w["d1"] + _row(w["b_d1"], 2)), 0.5, key, 1)
        return _cross_entropy(x @ w["d2"] + _row(w["b_d2"], 2), examples["y"])

    return Model(lambda key: _glorot(key, shapes), loss, no_metrics)


def lstm(cell: Callable[[Any, Array], Array] | None = None, unroll: int = 1) -> Model:
    """Stack Overflow's: embedding 96, LSTM 670, dense 96, dense 10 004; 4,050,748 parameters."""
    words, embedding, units = 10_004, 96, 670
    shapes = {
        "embed": (words, embedding),
        "wx": (embedding, 4 * units),
        "wh": (units, 4 * units),
        "d1": (units, embedding),
        "d2": (embedding, words),
    }
    run = cell or (lambda wh, z: time_loop(wh, z, unroll))

    def loss(w: Any, examples: Any) -> Array:
        z = w["embed"][examples["x"]] @ w["wx"] + _row(w["b_wx"], 3)
        hidden = run(w["wh"], z.swapaxes(0, 1)).swapaxes(0, 1)
        hidden = hidden @ w["d1"] + _row(w["b_d1"], 3)
        losses = _cross_entropy(hidden @ w["d2"] + _row(w["b_d2"], 3), examples["y"])
        word = (examples["y"] > 0).astype(losses.dtype)
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


def _dropout(x: Array, rate: float, key: Array | None, layer: int) -> Array:
    if key is None:
        return x
    kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def _row(bias: Array, rank: int) -> Array:
    return bias.reshape((1,) * (rank - 1) + bias.shape)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen
