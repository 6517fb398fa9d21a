# SPDX-License-Identifier: Apache-2.0
"""Several devices in one process: they give the reference's sums, and one device's run.

Simulated devices must be asked for before JAX starts, so the tests run in a process of their own,
with those of test_slices.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.core import sampling
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes_engine, reference_engine
from agnosticfl.engines.helpers import feed, plan
from agnosticfl.errors import BadInput
from tests.engines.devices import (
    close,
    compilations,
    on_8_devices,
    run_on_8_devices,
    starts_them,
)
from tests.engines.sums import sums, with_dropout
from tests.helpers.problems import quadratic, random_federated


@starts_them
def test_on_8_simulated_devices():
    run_on_8_devices("not slow", "test_devices.py", "test_slices.py")


@on_8_devices
@settings(max_examples=6)
@given(
    seed=st.integers(0, 10_000),
    cohort=st.integers(1, 12),
    width=st.integers(1, 3),
    devices=st.sampled_from([2, 3, 8]),
    batch_size=st.integers(1, 7),
    resident=st.booleans(),
)
def test_devices_equal_the_reference(
    seed: int, cohort: int, width: int, devices: int, batch_size: int, resident: bool
):
    data = random_federated(seed, clients=12)
    work = ClientWork(quadratic(), optax.sgd(0.1, 0.9), data.num_domains, batch_size, epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "fits", lambda _: resident)
        shared = functools.partial(lanes_engine, lanes=width, devices=devices)
        found = sums(shared, work, data, cohort, seed)
    close(found, sums(reference_engine, work, data, cohort, seed))


@on_8_devices
def test_dropout_masks_are_the_reference_s():
    data = random_federated(5)
    work = ClientWork(with_dropout(), optax.sgd(0.1), data.num_domains, batch_size=4, epochs=2)
    shared = functools.partial(lanes_engine, devices=2, lanes=2)
    close(sums(shared, work, data, 6, 1), sums(reference_engine, work, data, 6, 1))


@on_8_devices
def test_the_state_is_on_all_devices_and_a_round_is_compiled_once():
    algorithm = _algorithm(functools.partial(lanes_engine, devices=8, lanes=2))
    state, _ = algorithm.round(algorithm.init(), algorithm.cohort(1))
    with compilations() as compiled:
        for t in range(2, 8):
            state, _ = algorithm.round(state, algorithm.cohort(t))
        assert compiled() == 0
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(state))
    shards = [[s.data for s in leaf.addressable_shards] for leaf in jax.tree.leaves(state)]
    for first, *others in shards:
        for other in others:
            np.testing.assert_array_equal(first, other)


@on_8_devices
def test_a_model_that_is_not_tiny_takes_all_devices_and_a_tiny_one_its_blocks():
    data = random_federated(0)
    sampler = sampling.uniform(6, 4, 0)
    big = from_functions(lambda _: {"w": jnp.ones(5000)}, lambda w, e: e["x"] * w["w"][0])
    for model, devices in ((quadratic(), 1), (big, 8)):
        work = ClientWork(model, optax.sgd(0.1), 3, batch_size=2)
        assert lanes_engine(work, data, sampler, 0).choices["devices"] == devices
        with pytest.raises(BadInput, match="number of devices is 9; it must be from 1 to 8"):
            lanes_engine(work, data, sampler, 0, devices=9)


def _algorithm(engine: Callable[..., Any]) -> Any:
    return agnostic_fedavg(
        quadratic(), random_federated(3, clients=30), clients_per_round=11, batch_size=3,
        client_optimizer=optax.sgd(0.1), engine=engine,
    )  # fmt: skip


def test_a_cohort_is_divided_by_its_work():
    # Steps 5 4 3 3 1 1 on 2 parts with room for 3: 5 | 4, then 3 to the second (4 < 5), 3 to the
    # first (5 < 7), 1 to the second (7 < 8), which is full then, and 1 to the first.
    data = random_federated(0, clients=6)
    data = data._replace(offsets=np.array([0, 3, 4, 9, 12, 13, 17]))
    work = ClientWork(quadratic(), optax.sgd(0.1), 3, batch_size=1)
    planner = plan.make_planner(work, data, lambda _: np.arange(6), 0, parts=2)
    assert plan.parted(planner, 1, 2).tolist() == [[2, 3, 4], [0, 1, 5]]
    assert plan.parted(planner, 1, 4).tolist() == [[2, -1], [5, -1], [0, 1], [3, 4]]
    assert plan.parted(planner, 1, 1).tolist() == [[0, 1, 2, 3, 4, 5]]
