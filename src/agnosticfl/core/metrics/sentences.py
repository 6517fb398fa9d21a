# SPDX-License-Identifier: Apache-2.0
"""Metrics of a sentence: logits [n, T, K + 4], targets [n, T] -> sums over the T positions, [n]."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from agnosticfl.core.lazy_jax import Array, jax, jnp, numpy_of
from agnosticfl.core.metrics.base import Mean, metric
from agnosticfl.core.tokens import EOS, FIRST_WORD, PAD


@metric(
    "perplexity",
    of="tokens",
    higher_is_better=False,
    # exp(700) is nearly the largest number there is; an infinity could not be written as JSON.
    finish=lambda loss: math.exp(min(loss, 700.0)),
)
def perplexity(logits: Array, targets: Array) -> Mean:
    """exp of the mean loss of a token."""
    return token_loss(logits, targets)


def token_loss(logits: Array, targets: Array) -> Mean:
    """The cross-entropy of a sentence's tokens; padding is left out."""
    return over_real_tokens(cross_entropy(logits, targets), targets)


def over_real_tokens(losses: Array, targets: Array) -> Mean:
    """The sum of a sentence's losses [n, T] without those of padding, and how many there are."""
    return _over_tokens(losses, targets != PAD)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """−log softmax(logits)[target], over the last axis.

    Its derivative, softmax − 1[target], is written down: that of taking one logit would be
    scattered over all of them, in two passes more over numbers that fill an accelerator's memory.
    """
    if numpy_of(logits) is np:
        return _cross_entropy(logits, targets)[0]
    return _with_derivative()(logits, targets)


@functools.cache
def _with_derivative() -> Callable[[Array, Array], Array]:
    function = jax.custom_vjp(lambda logits, targets: _cross_entropy(logits, targets)[0])
    function.defvjp(_cross_entropy, _d_cross_entropy)
    return function


def _cross_entropy(logits: Any, targets: Any) -> tuple[Any, tuple[Any, ...]]:
    numbers = numpy_of(logits)
    total = _log_sum_exp(logits) if numbers is np else _log_sum_exp_on_device(logits)
    own = numbers.take_along_axis(logits, targets[..., None], axis=-1)
    return (total - own)[..., 0], (logits, total, targets)


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(axis=-1, keepdims=True)
    return largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))


def _log_sum_exp_on_device(logits: Array) -> Array:
    """The same; an accelerator reads the logits once, since they fill its memory."""

    def as_jax_has_it(logits: Array) -> Array:
        return jax.nn.logsumexp(logits, -1, keepdims=True)

    return jax.lax.platform_dependent(logits, cpu=as_jax_has_it, default=log_sum_exp_in_one_pass)


def log_sum_exp_in_one_pass(logits: Array) -> Array:
    """log Σ exp(logits) over the last axis, which stays, with length 1.

    Two parts (m, s) of a row, whose sums are exp(m) s, come together as the larger m, and the sum
    of both s for it.
    """
    least = jnp.finfo(logits.dtype).min  # for −∞, whose difference from itself is no number

    def together(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        factor = jnp.exp(-jnp.abs(a[0] - b[0]))
        larger, smaller = jnp.where(a[0] > b[0], a[1], b[1]), jnp.where(a[0] > b[0], b[1], a[1])
        return jnp.maximum(a[0], b[0]), larger + smaller * factor

    logits = jnp.maximum(logits, least)
    start = (jnp.asarray(least), jnp.zeros((), logits.dtype))
    m, s = jax.lax.reduce((logits, jnp.ones_like(logits)), start, together, (logits.ndim - 1,))
    return jnp.where(m < jnp.inf, m + jnp.log(s), m)[..., None]


def _d_cross_entropy(kept: tuple[Array, ...], d: Array) -> tuple[Array, None]:
    logits, total, targets = kept
    ids = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    is_target = (ids == targets[..., None]).astype(logits.dtype)
    return d[..., None] * (jnp.exp(logits - total) - is_target), None


@metric("in_vocab_accuracy", of="tokens", higher_is_better=True)
def in_vocab_accuracy(logits: Array, targets: Array) -> Mean:
    """The paper's: correct predictions other than OOV and EOS, among the words without EOS.

    An OOV target counts as a word, and is always wrong.
    """
    correct = (_said(logits) == targets) & (targets != _oov(logits))
    return _over_tokens(correct, _is_word(targets))


@metric("in_vocab_accuracy_fedjax", of="tokens", higher_is_better=True)
def in_vocab_accuracy_fedjax(logits: Array, targets: Array) -> Mean:
    """FedJAX's: as the paper's, but the model must choose among the K words."""
    first, oov = FIRST_WORD, _oov(logits)
    correct = _said(logits[..., first:oov]) + first == targets
    return _over_tokens(correct, _is_word(targets))


@metric("in_vocab_accuracy_tff", of="tokens", higher_is_better=True)
def in_vocab_accuracy_tff(logits: Array, targets: Array) -> Mean:
    """TFF's: correct predictions among the words of the vocabulary, OOV targets left out too."""
    correct = _said(logits) == targets
    return _over_tokens(correct, _is_word(targets) & (targets != _oov(logits)))


def _said(logits: Array) -> Array:
    return numpy_of(logits).argmax(logits, axis=-1)


def _oov(logits: Array) -> int:
    """The id of all words outside the vocabulary, K + 3, is the last one."""
    return logits.shape[-1] - 1


def _is_word(targets: Array) -> Array:
    return (targets != PAD) & (targets != EOS)


def _over_tokens(values: Array, counted: Array) -> Mean:
    weight = counted.astype(np.float32)
    total = numpy_of(values).where(counted, values.astype(np.float32), 0)
    return Mean(total.sum(axis=-1), weight.sum(axis=-1))
