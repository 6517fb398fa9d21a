# SPDX-License-Identifier: Apache-2.0
"""Every engine gives the reference's `ClientSum`."""

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes_engine, reference_engine
from agnosticfl.engines.helpers import feed
from agnosticfl.options import Normalisation
from agnosticfl.registry import ENGINES
from tests.engines.sums import sums, with_dropout
from tests.helpers.problems import SGD, quadratic, random_federated

OPTIMIZER = optax.sgd(0.1, momentum=0.5)  # one for all, so that the reference is compiled once
OTHERS = [name for name in ENGINES.names() if name != "reference"]
# What a client does. Every other value is another program, and each takes its time to compile: so
# there are few of them, and data of all seeds have the same shapes.
WORK: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.sampled_from([1, 4, 11, 13]),
    "epochs": st.integers(1, 2),
    "normalisation": st.sampled_from(get_args(Normalisation)),
    "local_steps": st.sampled_from([None, 1, 3]),
}


# Lanes have their own test below, and `auto` is one of the others.
@pytest.mark.parametrize("engine", [name for name in OTHERS if name not in ("auto", "lanes")])
@given(seed=st.integers(0, 10_000), cohort=st.sampled_from([1, 5, 6]), **WORK)
def test_engine_equals_the_reference(engine: str, seed: int, cohort: int, **options: Any):
    data = random_federated(seed, examples=33)
    work = ClientWork(quadratic(), OPTIMIZER, data.num_domains, **options)
    expected = sums(reference_engine, work, data, cohort, seed)
    jax.tree.map(_close, sums(ENGINES.get(engine), work, data, cohort, seed), expected)


@pytest.mark.parametrize("engine", OTHERS)
def test_dropout_masks_are_the_reference_s(engine: str):
    jax.tree.map(_close, dropping_out(engine), dropping_out("reference"))


@functools.cache
def dropping_out(engine: str) -> Any:
    data = random_federated(5)
    work = ClientWork(with_dropout(), SGD, data.num_domains, batch_size=4, epochs=2)
    return sums(ENGINES.get(engine), work, data, 6, 1)


def test_losses_are_measured_with_dropout_off_and_steps_with_it_on():
    again = dropping_out.__wrapped__("padded")
    jax.tree.map(np.testing.assert_array_equal, dropping_out("padded"), again)
    examples = {"x": jnp.linspace(-1, 1, 32)}
    model = with_dropout()
    params, loss = jax.jit(model.init)(jax.random.key(0)), jax.jit(model.per_example_loss)
    keys = (None, None, jax.random.key(1), jax.random.key(2))
    a, b, c, d = (loss(params, examples, key) for key in keys)
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(c, d)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    cohort=st.sampled_from([1, 5, 12]),
    width=st.sampled_from([None, 1, 3, 5]),
    resident=st.booleans(),
    **WORK,
)
def test_lanes_equal_the_reference_however_many_there_are_and_wherever_the_data_is(
    seed: int, cohort: int, width: int | None, resident: bool, **options: Any
):
    data = random_federated(seed, clients=12, examples=66)
    work = ClientWork(quadratic(), OPTIMIZER, data.num_domains, **options)
    expected = sums(reference_engine, work, data, cohort, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "fits", lambda _: resident)
        some_lanes = functools.partial(lanes_engine, lanes=width)
        jax.tree.map(_close, sums(some_lanes, work, data, cohort, seed), expected)


def _close(a: Any, b: Any) -> None:
    # One engine sums in another order than the other: float32 agrees to about six digits.
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
