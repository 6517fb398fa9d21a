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

from agnosticfl.core.model import Model
from agnosticfl.models.helpers.embedding import Embedding
from agnosticfl.models.helpers.language import DEFAULT_METRICS, Sizes, language_model
from agnosticfl.models.helpers.next_word import Narrow
from agnosticfl.models.helpers.recurrent import Dense, gates, over_time
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("lstm")
def lstm(
    words: AtLeastOne = 10_000,
    embedding: AtLeastOne = 96,
    hidden: AtLeastOne = 670,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """Embedding, one LSTM layer, a dense layer back to the embedding's size, logits (untied).

    With the defaults, the paper's, it has 4,050,748 parameters.

    Args:
      words: K, words of the vocabulary (the ids of padding, bos, eos and oov come on top).
      embedding: numbers of a word's vector.
      hidden: units of the recurrent layer.
      metrics: names of metrics of tokens.
    """
    return language_model(LSTM, Sizes(words, embedding, hidden), metrics)


class LSTM(nnx.Module):
    """The network; its initial weights are those of Keras."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        dense = partial(Dense, kernel_init=nnx.initializers.glorot_uniform(), rngs=rngs)
        self.embedding = Embedding(
            sizes.vocabulary, sizes.embedding, embedding_init=small, rngs=rngs
        )
        self.gates = gates(sizes.embedding, sizes.hidden, (0, 1, 0, 0), rngs)
        shape = (sizes.hidden, 4 * sizes.hidden)
        self.recurrent = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), shape))
        self.dense = dense(sizes.hidden, sizes.embedding)
        self.output = dense(sizes.embedding, sizes.vocabulary)

    def narrow(self, inputs: Array) -> Narrow:
        """Ids [n, T] -> what the logits [n, T, K + 4] are made of."""
        # Time comes first in the loop; turning ids and the narrow layer costs least.
        z = self.gates(self.embedding(inputs.T))
        h = over_time(lstm_unit, self.recurrent[...], None, z)
        output = self.output
        assert output.bias is not None
        return Narrow(self.dense(h).swapaxes(0, 1), output.kernel[...], output.bias[...])


def small(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Keras's initial embedding."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


def lstm_unit(c: Array, i: Array, f: Array, g: Array, o: Array) -> tuple[Array, Array]:
    """One time step, c_{t-1} and the sums at the gates a_t = i, f, g, o -> c_t, h_t.

    c_t = σ(f) c_{t-1} + σ(i) tanh(g)
    h_t = σ(o) tanh(c_t)
    """
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return c, sigmoid(o) * jnp.tanh(c)
