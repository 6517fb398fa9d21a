# SPDX-License-Identifier: Apache-2.0
"""Every engine gives the reference's `ClientSum`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from agnosticfl import from_nnx, sampling
from agnosticfl.client import ClientSum, ClientWork
from agnosticfl.data import FederatedData
from agnosticfl.engine import ENGINES, Broadcast, feed, lanes
from agnosticfl.model import Model
from tests.problems import quadratic, random_federated

OTHERS = [name for name in ENGINES if name != "reference"]


class DropoutNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(1, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.last(self.dropout(jnp.tanh(self.first(x[:, None]))))[:, 0]


def with_dropout() -> Model:
    return from_nnx(DropoutNet, lambda net, e: jnp.square(net(e["x"]) - e["x"]))


def sums(engine: str, work: ClientWork, data: FederatedData, cohort: int, seed: int) -> ClientSum:
    sampler = sampling.uniform(data.num_clients, cohort, seed)
    seam = ENGINES[engine](work, data, sampler, seed)
    params = work.model.init(jax.random.key(seed))
    alpha = jnp.linspace(0.1, 0.5, work.num_domains)
    sent = Broadcast(params, alpha)
    return seam.compile(seam.sum_over_clients)(sent, seam.cohort(seed % 7 + 1))


@pytest.mark.parametrize("engine", OTHERS)
@given(
    seed=st.integers(0, 10_000),
    cohort=st.integers(1, 6),
    batch_size=st.integers(1, 13),
    epochs=st.integers(1, 2),
    normalisation=st.sampled_from(["client", "batch"]),
    local_steps=st.sampled_from([None, 1, 3]),
)
def test_engine_equals_the_reference(engine: str, seed: int, cohort: int, **options: Any):
    data = random_federated(seed)
    work = ClientWork(quadratic(), optax.sgd(0.1, momentum=0.5), data.num_domains, **options)
    expected = sums("reference", work, data, cohort, seed)
    jax.tree.map(_close, sums(engine, work, data, cohort, seed), expected)


@pytest.mark.parametrize("engine", OTHERS)
def test_dropout_masks_are_the_reference_s(engine: str):
    data = random_federated(5)
    work = ClientWork(with_dropout(), optax.sgd(0.1), data.num_domains, batch_size=4, epochs=2)
    expected = sums("reference", work, data, 6, 1)
    jax.tree.map(_close, sums(engine, work, data, 6, 1), expected)


def test_losses_are_measured_with_dropout_off_and_steps_with_it_on():
    data = random_federated(5)
    work = ClientWork(with_dropout(), optax.sgd(0.1), data.num_domains, batch_size=4)
    one, other = (sums("padded", work, data, 6, seed) for seed in (1, 1))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    examples = {"x": jnp.linspace(-1, 1, 32)}
    params = work.model.init(jax.random.key(0))
    keys = (None, None, jax.random.key(1), jax.random.key(2))
    a, b, c, d = (work.model.per_example_loss(params, examples, key) for key in keys)
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(c, d)


@given(
    seed=st.integers(0, 10_000),
    cohort=st.integers(1, 12),
    width=st.integers(1, 5),
    batch_size=st.integers(1, 7),
    resident=st.booleans(),
)
def test_lanes_equal_the_reference_however_many_there_are_and_wherever_the_data_is(
    seed: int, cohort: int, width: int, batch_size: int, resident: bool
):
    data = random_federated(seed, clients=12)
    work = ClientWork(quadratic(), optax.sgd(0.1, 0.9), data.num_domains, batch_size, epochs=2)
    expected = sums("reference", work, data, cohort, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "fits", lambda _: resident)
        patch.setitem(ENGINES, "some lanes", functools.partial(lanes, lanes=width))
        jax.tree.map(_close, sums("some lanes", work, data, cohort, seed), expected)


def _close(a: Any, b: Any) -> None:
    # One engine sums in another order than the other: float32 agrees to about six digits.
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
