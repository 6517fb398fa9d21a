# SPDX-License-Identifier: Apache-2.0
"""The paper's Stack Overflow model: an LSTM that predicts the next word."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn import sigmoid

from agnosticfl.model import Model
from agnosticfl.models.language import (
    DEFAULT_METRICS,
    Sizes,
    before,
    gates,
    language_model,
    over_time,
)
from agnosticfl.precision import product, rounded


def lstm(
    words: int = 10_000,
    embedding: int = 96,
    hidden: int = 670,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """Embedding, one LSTM layer, a dense layer back to the embedding's size, logits (untied).

    With the defaults, the paper's, it has 4,050,748 parameters.
    """
    return language_model(LSTM, Sizes(words, embedding, hidden), metrics)


class LSTM(nnx.Module):
    """Ids [n, T] -> logits [n, T, K + 4]. The initial weights are those of Keras."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        dense = partial(nnx.Linear, kernel_init=nnx.initializers.glorot_uniform(), rngs=rngs)
        self.embedding = nnx.Embed(
            sizes.vocabulary, sizes.embedding, embedding_init=small, rngs=rngs
        )
        self.gates = gates(sizes, (0, 1, 0, 0), rngs)
        shape = (sizes.hidden, 4 * sizes.hidden)
        self.recurrent = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), shape))
        self.dense = dense(sizes.hidden, sizes.embedding)
        self.output = dense(sizes.embedding, sizes.vocabulary)

    def __call__(self, inputs: Array) -> Array:
        # Time comes first in the loop; turning ids and the narrow layer costs least.
        z = self.gates(self.embedding(inputs.T))
        h = lstm_layer(self.recurrent[...], z)
        return self.output(self.dense(h).swapaxes(0, 1))


def small(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Keras's initial embedding."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


@jax.custom_vjp
def lstm_layer(recurrent: Array, z: Array) -> Array:
    """h_1 … h_T from the inputs' part of the gates z = W x + b, [T, n, 4 hidden].

    Its gradient is that of the formulas, but for U it is one product over all time steps: one a
    step would add |U| numbers to memory each time.
    """
    return _hidden(recurrent, z)


def _hidden(recurrent: Array, z: Array) -> Array:
    start = jnp.zeros((z.shape[1], recurrent.shape[0]), z.dtype)
    return over_time(partial(lstm_cell, rounded(recurrent)), (start, start), z)


def _forward(recurrent: Array, z: Array) -> tuple[Array, Any]:
    h, pullback = jax.vjp(partial(_hidden, recurrent), z)
    return h, (h, pullback)


def _backward(kept: Any, d_h: Array) -> tuple[Array, Array]:
    h, pullback = kept
    (d_z,) = pullback(d_h)  # also the gradient of U h_{t-1}, which is added to z
    return jnp.einsum("tni,tnj->ij", before(h), d_z), d_z


lstm_layer.defvjp(_forward, _backward)


def lstm_cell(
    recurrent: Array, state: tuple[Array, Array], z: Array
) -> tuple[tuple[Array, Array], Array]:
    """One time step.

    i, f, g, o = z + U h_{t-1}
    c_t = σ(f) c_{t-1} + σ(i) tanh(g)
    h_t = σ(o) tanh(c_t)
    """
    h, c = state
    i, f, g, o = jnp.split(z + product(h, recurrent), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    h = sigmoid(o) * jnp.tanh(c)
    return (h, c), h
