# SPDX-License-Identifier: Apache-2.0
"""The paper's keyboard model: a recurrent cell with a coupled input and forget gate."""

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


def cifg(
    words: int = 10_000,
    embedding: int = 96,
    hidden: int = 670,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """Embedding, one CIFG layer projected to the embedding's size, logits by the same embedding.

    With the defaults it has 1,412,634 parameters: embedding (10,000 + 4) × 96 = 960,384; three
    gates of 670 units with bias from 96 inputs and 96 recurrent numbers, 3 × 670 × (96 + 96 + 1) =
    387,930; projection 670 × 96 = 64,320. Projection and output have no bias, and there are no
    peepholes: so it comes to the 1.41 million that are named for this model.
    """
    return language_model(CIFG, Sizes(words, embedding, hidden), metrics)


class CIFG(nnx.Module):
    """Ids [n, T] -> logits [n, T, K + 4]."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        orthogonal, glorot = nnx.initializers.orthogonal(), nnx.initializers.glorot_uniform()
        self.embedding = nnx.Embed(sizes.vocabulary, sizes.embedding, rngs=rngs)
        self.gates = gates(sizes, (1, 0, 0), rngs)
        shape = (sizes.embedding, 3 * sizes.hidden)
        self.recurrent = nnx.Param(orthogonal(rngs.params(), shape))
        shape = (sizes.hidden, sizes.embedding)
        self.projection = nnx.Param(glorot(rngs.params(), shape))

    def __call__(self, inputs: Array) -> Array:
        # Time comes first in the loop; turning ids and the narrow layer costs least.
        z = self.gates(self.embedding(inputs.T))
        h = cifg_layer(self.recurrent[...], self.projection[...], z)
        return self.embedding.attend(h.swapaxes(0, 1))


@jax.custom_vjp
def cifg_layer(recurrent: Array, projection: Array, z: Array) -> Array:
    """h_1 … h_T from the inputs' part of the gates z = W x + b, [T, n, 3 hidden].

    As in `lstm_layer`, the gradients of U and P are one product each over all time steps.
    """
    return _hidden(recurrent, projection, z, _nothing(projection, z))[0]


def _nothing(projection: Array, z: Array) -> Array:
    return jnp.zeros((*z.shape[:2], projection.shape[1]), z.dtype)


def _hidden(recurrent: Array, projection: Array, z: Array, added: Array) -> tuple[Array, Array]:
    start = tuple(jnp.zeros((z.shape[1], size), z.dtype) for size in reversed(projection.shape))
    cell = partial(cifg_cell, rounded(recurrent), rounded(projection))
    return over_time(cell, start, (z, added))


def _forward(recurrent: Array, projection: Array, z: Array) -> tuple[Array, Any]:
    hidden = partial(_hidden, recurrent, projection)
    (h, m), pullback = jax.vjp(hidden, z, _nothing(projection, z))
    return h, (h, m, pullback)


def _backward(kept: Any, d_h: Array) -> tuple[Array, Array, Array]:
    h, m, pullback = kept
    d_z, d_projected = pullback((d_h, jnp.zeros_like(m)))
    d_recurrent = jnp.einsum("tni,tnj->ij", before(h), d_z)
    return d_recurrent, jnp.einsum("tni,tnj->ij", m, d_projected), d_z


cifg_layer.defvjp(_forward, _backward)


def cifg_cell(
    recurrent: Array,
    projection: Array,
    state: tuple[Array, Array],
    inputs: tuple[Array, Array],
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """One time step: h_t and m_t. `added` is 0; its gradient is that of P m_t.

    f, g, o = z + U h_{t-1}
    c_t = σ(f) c_{t-1} + (1 − σ(f)) tanh(g)
    m_t = σ(o) tanh(c_t)
    h_t = P m_t
    """
    (h, c), (z, added) = state, inputs
    f, g, o = jnp.split(z + product(h, recurrent), 3, axis=-1)
    forget = sigmoid(f)
    c = forget * c + (1 - forget) * jnp.tanh(g)
    m = sigmoid(o) * jnp.tanh(c)
    h = product(m, projection) + added
    return (h, c), (h, m)
