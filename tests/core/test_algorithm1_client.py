# SPDX-License-Identifier: Apache-2.0
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl.core.algorithm1 import (
    client_weight,
    contribution,
    domain_count,
    domain_loss,
    local_loss,
    local_step,
)
from agnosticfl.core.work import Batch, ClientWork, check_work
from agnosticfl.engines.padded import client_in_one_scan
from agnosticfl.errors import BadInput
from tests.helpers.problems import linear, quadratic

W = {"w": jnp.float32(4.0)}
ALPHA = jnp.array([0.1, 0.3])
KEY = jax.random.key(0)
SIZE = jnp.float32(12)  # n_k of a client of whom a test shows one batch only
WORK = ClientWork(linear(), optax.sgd(1.0), num_domains=2, batch_size=3)


def batch(x: list[float], domain: list[int], mask: list[float]) -> Batch:
    return Batch({"x": jnp.array(x)}, jnp.array(domain, jnp.int32), jnp.array(mask))


# Three examples and one of padding.
BATCH = batch([1.0, 2.0, 5.0, 9.0], [0, 1, 1, 0], [1.0, 1.0, 1.0, 0.0])


def test_counts_and_losses_by_domain_leave_padding_out():
    np.testing.assert_array_equal(domain_count(BATCH, 2), [1, 2])
    np.testing.assert_array_equal(domain_loss(linear(), W, BATCH, 2), [1.0 * 4, (2.0 + 5.0) * 4])


def test_client_weight_is_its_formula():
    assert client_weight(ALPHA, jnp.array([1.0, 2.0])) == pytest.approx(0.1 * 1 + 0.3 * 2)


def test_local_loss_by_client_divides_by_the_weight_of_all_examples():
    expected = (0.1 * 1 * 4 + 0.3 * (2 + 5) * 4) / 1.5
    actual = local_loss(WORK, W, BATCH, ALPHA, jnp.float32(1.5), SIZE, KEY)
    assert actual == pytest.approx(expected)


def test_local_loss_by_batch_divides_by_the_weight_of_the_batch():
    work = WORK._replace(normalisation="batch")
    expected = (0.1 * 1 * 4 + 0.3 * (2 + 5) * 4) / (0.1 * 1 + 0.3 * 2)
    actual = local_loss(work, W, BATCH, ALPHA, jnp.float32(1.5), SIZE, KEY)
    assert actual == pytest.approx(expected)


def test_equal_alpha_by_batch_is_the_plain_mean():
    work = WORK._replace(normalisation="batch")
    actual = local_loss(work, W, BATCH, jnp.array([0.7, 0.7]), jnp.float32(1.5), SIZE, KEY)
    assert actual == pytest.approx(4 * (1 + 2 + 5) / 3)


def test_local_loss_unbiased_divides_by_the_batch_s_share_of_the_client_s_weight():
    work = WORK._replace(normalisation="unbiased")
    # β^k |b| / n_k, with 3 of the client's 12 examples in the batch
    expected = (0.1 * 1 * 4 + 0.3 * (2 + 5) * 4) / (1.5 * 3 / 12)
    actual = local_loss(work, W, BATCH, ALPHA, jnp.float32(1.5), SIZE, KEY)
    assert actual == pytest.approx(expected)


def test_equal_alpha_unbiased_is_the_plain_mean():
    work = WORK._replace(normalisation="unbiased")
    # β^k = 0.7 · 12
    actual = local_loss(work, W, BATCH, jnp.array([0.7, 0.7]), jnp.float32(8.4), SIZE, KEY)
    assert actual == pytest.approx(4 * (1 + 2 + 5) / 3)


@pytest.mark.parametrize(
    ("normalisation", "expected"), [("client", 15.5 * 2 / 4), ("unbiased", 15.5), ("batch", 16)]
)
def test_the_mean_over_all_batches_of_a_client(normalisation: str, expected: float):
    """The client's own loss, times |b| / n_k where β^k divides; something else with `batch`.

    Losses x·w = (4, 8, 20, 36) with α = (0.1, 0.3, 0.3, 0.1): Σ α L / Σ α = 12.4 / 0.8 = 15.5. The
    six pairs have means of their own, (7 + 16 + 20 + 14 + 15 + 24) / 6 = 16.
    """
    work = WORK._replace(normalisation=normalisation)
    x, domain = [1.0, 2.0, 5.0, 9.0], [0, 1, 1, 0]
    beta, size = jnp.float32(0.8), jnp.float32(4)
    losses = [
        local_loss(work, W, batch([x[i], x[j]], [domain[i], domain[j]], [1.0, 1.0]), ALPHA, beta,
                   size, KEY)
        for i, j in itertools.combinations(range(4), 2)
    ]  # fmt: skip
    assert np.mean(losses) == pytest.approx(expected)


def test_a_local_step_descends():
    gradient = (0.1 * 1 + 0.3 * (2 + 5)) / 1.5  # of x·w
    work = WORK._replace(optimizer=optax.sgd(0.5))
    start, beta = work.optimizer.init(W), jnp.float32(1.5)
    new, _ = local_step(work, W, start, BATCH, ALPHA, beta, SIZE, KEY)
    assert new["w"] == pytest.approx(4 - 0.5 * gradient)


def test_client_runs_every_epoch_over_its_batches():
    """Two steps of (x − w)² on one example, by hand: w ← w − γ 2 (w − x)."""
    work = ClientWork(quadratic(), optax.sgd(0.25), 1, 1, epochs=2)
    data = batch([3.0], [0], [1.0])
    total = client_in_one_scan(work, {"w": jnp.float32(1.0)}, jnp.ones(1), _stack([data]), KEY)
    w1 = 1.0 - 0.25 * 2 * (1.0 - 3.0)
    w2 = w1 - 0.25 * 2 * (w1 - 3.0)
    assert total.weighted_delta["w"] == pytest.approx(1.0 - w2)
    np.testing.assert_allclose(total.domain_loss, [(1.0 - 3.0) ** 2])  # at the received w


def test_batches_of_padding_change_nothing_even_with_momentum():
    work = WORK._replace(optimizer=optax.sgd(0.5, momentum=0.9))
    padding = BATCH._replace(mask=jnp.zeros(4))
    short = client_in_one_scan(work, W, ALPHA, _stack([BATCH, BATCH]), KEY)
    long = client_in_one_scan(work, W, ALPHA, _stack([BATCH, BATCH, padding, padding]), KEY)
    jax.tree.map(np.testing.assert_array_equal, short, long)


def test_a_client_whose_domains_have_no_weight_adds_its_losses_only():
    total = client_in_one_scan(WORK, W, jnp.zeros(2), _stack([BATCH]), KEY)
    assert total.beta == 0
    assert total.weighted_delta["w"] == 0
    assert total.left_out == 0
    np.testing.assert_array_equal(total.domain_count, [1, 2])


@pytest.mark.nan_input
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_contribution_that_is_not_finite_is_left_out_whole(bad: float):
    one, two = jnp.ones(()), jnp.ones(2)
    for trained, beta, loss in (
        ({"w": jnp.float32(bad)}, one, two),
        (W, jnp.float32(bad), two),
        (W, one, jnp.array([1.0, bad])),
    ):
        total = contribution(W, trained, beta, loss, two)
        assert total.left_out == 1
        for leaf in jax.tree.leaves(total._replace(left_out=jnp.zeros(()))):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, r"batch size \(B\) is 0; it must be at least 1"),
        ({"epochs": 0}, r"epochs \(E\) is 0; it must be at least 1"),
        ({"num_domains": 0}, r"number of domains \(p\) is 0"),
        ({"normalisation": "clients"}, "unknown normalisation 'clients'; did you mean 'client'?"),
    ],
)
def test_bad_work_is_refused(change: dict[str, object], message: str):
    with pytest.raises(BadInput, match=message):
        check_work(WORK._replace(**change))  # type: ignore[arg-type]


def _stack(batches: list[Batch]) -> Batch:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
