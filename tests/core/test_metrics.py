# SPDX-License-Identifier: Apache-2.0
"""Metrics on one sentence that can be redone by hand.

K = 2 words, so the ids are 0 pad, 1 bos, 2 eos, 3 and 4 the words, 5 oov.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl.core.evaluate import evaluator
from agnosticfl.core.federated import from_arrays
from agnosticfl.core.metrics import (
    Mean,
    Reading,
    accuracy,
    cross_entropy,
    in_vocab_accuracy,
    in_vocab_accuracy_fedjax,
    in_vocab_accuracy_tff,
    perplexity,
    reading,
)
from agnosticfl.core.metrics.sentences import log_sum_exp_in_one_pass
from agnosticfl.core.model import from_functions
from agnosticfl.errors import BadInput
from agnosticfl.models.helpers.language import sentence_loss
from agnosticfl.registry import METRICS

TARGETS = jnp.array([[3, 4, 5, 2, 0]])
FIRST_CHOICE = [3, 5, 5, 2, 0]  # right, wrong (oov), right (oov), right (eos), right (pad)
SECOND_CHOICE = [4, 4, 3, 3, 3]  # what is chosen where only words may be: right at the 2nd place


def logits() -> jax.Array:
    rows = np.zeros((1, 5, 6), np.float32)
    for place, (first, second) in enumerate(zip(FIRST_CHOICE, SECOND_CHOICE, strict=True)):
        rows[0, place, first], rows[0, place, second] = 2, 1
    return jnp.asarray(rows)


def test_a_cross_entropy_and_its_derivative_are_optax_s():
    """Also where a logit is so large that its exp would be infinite."""
    rows = 5 * jax.random.normal(jax.random.key(0), (3, 4, 6))
    rows = rows.at[0, 0, 3].set(1000.0)
    targets = jax.random.randint(jax.random.key(1), (3, 4), 0, 6)

    def both(function: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jax.value_and_grad(lambda rows: jnp.sum(jnp.sin(function(rows, targets))))(rows)

    expected = both(optax.softmax_cross_entropy_with_integer_labels)
    for a, b in zip(both(cross_entropy), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.nan_input
def test_a_sum_of_exponentials_is_the_same_in_one_pass():
    """Also for rows that are infinite or too large for exp."""
    rows = 5 * np.random.default_rng(0).normal(size=(4, 1000))
    exact = np.log(np.exp(rows).sum(axis=1, keepdims=True))
    found = log_sum_exp_in_one_pass(jnp.asarray(rows, jnp.float32))
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    edges = [[np.inf, 1, 2], [np.inf, np.inf, 0], [np.nan, 1, 2], [1e38, 3e38, 0], [-np.inf, -4, 2]]
    edges = jnp.asarray(edges, jnp.float32)
    expected = jax.nn.logsumexp(edges, axis=-1, keepdims=True)
    np.testing.assert_allclose(log_sum_exp_in_one_pass(edges), expected, rtol=1e-6)


def test_an_accelerator_reads_the_logits_once():
    """Not a first time for the largest of them, whose sum of exponentials is then taken."""
    traced = jax.jit(cross_entropy).trace(jnp.zeros((2, 3, 50)), jnp.zeros((2, 3), int))
    alone = {
        platform: "applies stablehlo.maximum"
        in traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda")
    }
    assert alone == {"cpu": True, "cuda": False}


@pytest.mark.parametrize(
    ("metric", "total", "weight"),
    [
        (in_vocab_accuracy, 1, 3),  # right: 3; words: 3, 4 and oov
        (in_vocab_accuracy_fedjax, 2, 3),  # right: 3 and 4; words: 3, 4 and oov
        (in_vocab_accuracy_tff, 1, 2),  # right: 3; words: 3 and 4
    ],
)
def test_in_vocab_accuracy(metric: Callable[..., Mean], total: float, weight: float):
    result = metric(logits(), TARGETS)
    np.testing.assert_array_equal(result.total, [total])
    np.testing.assert_array_equal(result.weight, [weight])


def test_accuracy():
    result = accuracy(jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), jnp.array([1, 1, 1]))
    np.testing.assert_array_equal(result.total, [1, 0, 1])
    np.testing.assert_array_equal(result.weight, [1, 1, 1])


def test_perplexity_of_a_guess_is_the_number_of_choices():
    result = perplexity(jnp.zeros((1, 5, 6)), TARGETS)
    assert reading("perplexity").finish(float(result.total[0] / result.weight[0])) == pytest.approx(
        6
    )
    assert result.weight[0] == 4  # the padding does not count


def test_loss_is_a_mean_over_sentences_and_perplexity_one_over_tokens():
    # Logit 2 for the target and 0 for five others: a loss of log(e² + 5) − 2 against log 6.
    known, guess = math.log(math.exp(2) + 5) - 2, math.log(6)
    targets = jnp.array([[3, 0, 0], [3, 4, 2], [0, 0, 0]])  # 1 token, 3 tokens, none
    scores = 2 * jax.nn.one_hot(targets, 6) * jnp.array([1.0, 0.0, 1.0])[:, None, None]
    model = from_functions(
        lambda _: {},
        lambda _, e: sentence_loss(cross_entropy(e["logits"], e["targets"]), e["targets"]),
        lambda _, e: {"perplexity": perplexity(e["logits"], e["targets"])},
    )
    data = from_arrays({"logits": scores, "targets": targets}, clients=[0, 0, 0], domains=[0, 0, 0])
    results = evaluator(model, data, batch_size=2)({})["0"]
    assert results["loss"] == pytest.approx((known + guess + 0) / 3)
    assert results["perplexity"] == pytest.approx(math.exp((known + 3 * guess) / 4))


def test_a_hopeless_perplexity_is_still_a_number():
    assert math.isfinite(reading("perplexity").finish(1e9))


def test_what_is_better():
    higher = {name for name in ("loss", *METRICS.names()) if reading(name).higher_is_better}
    lower = {"calibration_error", "mae", "perplexity", "rmse"}
    assert higher == set(METRICS.names()) - lower
    assert {"accuracy", "in_vocab_accuracy"} <= higher


def test_a_metric_of_one_s_own_must_say_what_is_better():
    assert not reading("my_error", [("my_error", Reading(higher_is_better=False))]).higher_is_better
    with pytest.raises(BadInput, match="nobody says whether a higher 'my_error' is better"):
        reading("my_error")
