# SPDX-License-Identifier: Apache-2.0
"""What all language models have in common: sentences in, loss and metrics out.

A sentence is `tokens`, [length + 1] ids: 0 pad, 1 bos, 2 eos, K words from 3 on, K + 3 oov.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.metrics import over_real_tokens
from agnosticfl.core.model import Examples, Model, Need
from agnosticfl.core.tokens import EOS, FIRST_WORD, PAD
from agnosticfl.errors import check
from agnosticfl.models.adapters import from_nnx
from agnosticfl.models.helpers.next_word import Narrow, logits_of, losses_of

DEFAULT_METRICS = ("perplexity", "in_vocab_accuracy")


class LanguageModule(Protocol):
    """A recurrent network up to its last product."""

    def narrow(self, inputs: Array) -> Narrow:
        """Ids [n, T] -> what the logits [n, T, K + 4] are made of."""
        ...


class Sizes(NamedTuple):
    """Of a recurrent language model."""

    words: int  # K
    embedding: int
    hidden: int

    @property
    def vocabulary(self) -> int:
        """Ids: the words, pad, bos, eos and oov."""
        return self.words + FIRST_WORD + 1


def language_model(
    module: Callable[..., LanguageModule],
    sizes: Sizes,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """A model that predicts each token of a sentence from those before it.

    Args:
      module: `module(sizes, rngs)` is an NNX module.
      metrics: names of metrics of tokens.
    """
    for name, value in sizes._asdict().items():
        check(value >= 1, f"{name} of a language model is {value}; it must be at least 1")

    def create(rngs: nnx.Rngs) -> Any:
        return module(sizes, rngs)

    def loss(module: LanguageModule, examples: Examples) -> Array:
        inputs, targets = inputs_and_targets(examples["tokens"])
        return sentence_loss(losses_of(module.narrow(inputs), targets), targets)

    def logits(module: LanguageModule, examples: Examples) -> Array:
        return logits_of(module.narrow(inputs_and_targets(examples["tokens"])[0]))

    def targets(examples: Examples) -> Array:
        return inputs_and_targets(examples["tokens"])[1]

    text = f"2 or more ids from 0 to {sizes.vocabulary - 1} (words = {sizes.words})"
    tokens = Need("tokens", text, lambda shape: len(shape) == 1 and shape[0] >= 2, sizes.vocabulary)
    model = from_nnx(
        create, loss, forward=logits, outputs="tokens", wanted=targets, metrics=metrics
    )
    return model._replace(needs=(tokens,))


def inputs_and_targets(tokens: Array) -> tuple[Array, Array]:
    """Each token is predicted from those before it; an eos says nothing more than a pad does."""
    tokens = tokens.astype(jnp.int32)
    inputs = tokens[:, :-1]
    return jnp.where(inputs == EOS, PAD, inputs), tokens[:, 1:]


def sentence_loss(losses: Array, targets: Array) -> Array:
    """The mean loss of a sentence's real tokens, [n]; 0 if it has none."""
    total, tokens = over_real_tokens(losses, targets)
    return tree.divide(total, tokens)
