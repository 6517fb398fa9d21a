# SPDX-License-Identifier: Apache-2.0
"""The paper's keyboard model: a recurrent cell with a coupled input and forget gate."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn import sigmoid

from agnosticfl.core.model import Model
from agnosticfl.models.helpers.embedding import Embedding
from agnosticfl.models.helpers.language import DEFAULT_METRICS, Sizes, language_model
from agnosticfl.models.helpers.next_word import Narrow
from agnosticfl.models.helpers.recurrent import gates, over_time
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS


@MODELS.add("cifg")
def cifg(
    words: AtLeastOne = 10_000,
    embedding: AtLeastOne = 96,
    hidden: AtLeastOne = 670,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """Embedding, one CIFG layer projected to the embedding's size, logits by the same embedding.

    With the defaults it has 1,412,634 parameters: embedding (10,000 + 4) × 96 = 960,384; three
    gates of 670 units with bias from 96 inputs and 96 recurrent numbers, 3 × 670 × (96 + 96 + 1) =
    387,930; projection 670 × 96 = 64,320. Projection and output have no bias, and there are no
    peepholes: so it comes to the 1.41 million that are named for this model.

    Args:
      words: K, words of the vocabulary (the ids of padding, bos, eos and oov come on top).
      embedding: numbers of a word's vector.
      hidden: units of the recurrent layer.
      metrics: names of metrics of tokens.
    """
    return language_model(CIFG, Sizes(words, embedding, hidden), metrics)


class CIFG(nnx.Module):
    """The network."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        orthogonal, glorot = nnx.initializers.orthogonal(), nnx.initializers.glorot_uniform()
        self.embedding = Embedding(sizes.vocabulary, sizes.embedding, rngs=rngs)
        self.gates = gates(sizes.embedding, sizes.hidden, (1, 0, 0), rngs)
        shape = (sizes.embedding, 3 * sizes.hidden)
        self.recurrent = nnx.Param(orthogonal(rngs.params(), shape))
        shape = (sizes.hidden, sizes.embedding)
        self.projection = nnx.Param(glorot(rngs.params(), shape))

    def narrow(self, inputs: Array) -> Narrow:
        """Ids [n, T] -> what the logits [n, T, K + 4] are made of."""
        # Time comes first in the loop; turning ids and the narrow layer costs least.
        z = self.gates(self.embedding(inputs.T))
        h = over_time(cifg_unit, self.recurrent[...], self.projection[...], z)
        return Narrow(h.swapaxes(0, 1), self.embedding.embedding[...].T)


def cifg_unit(c: Array, f: Array, g: Array, o: Array) -> tuple[Array, Array]:
    """One time step, c_{t-1} and the sums at the gates a_t = f, g, o -> c_t, m_t.

    c_t = σ(f) c_{t-1} + (1 − σ(f)) tanh(g)
    m_t = σ(o) tanh(c_t)
    """
    forget = sigmoid(f)
    c = forget * c + (1 - forget) * jnp.tanh(g)
    return c, sigmoid(o) * jnp.tanh(c)
