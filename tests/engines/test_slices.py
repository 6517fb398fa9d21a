# SPDX-License-Identifier: Apache-2.0
"""A client's step divided among devices: the reference's sums, with a part of its memory on each.

Those of the tests on several devices that are fast run in the process that test_devices.py starts.
"""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

from agnosticfl import agnostic_fedavg, from_arrays
from agnosticfl.core import compiling, sampling
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Model
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import auto_engine, lanes_engine, reference_engine
from agnosticfl.engines import lanes as lanes_file
from agnosticfl.engines.helpers import feed
from agnosticfl.engines.helpers.shards import SAME, here
from agnosticfl.engines.helpers.slices import AXIS, divided, spec
from agnosticfl.errors import BadInput
from agnosticfl.models import cnn, linear, lstm
from agnosticfl.runs.run import Stopped, run
from tests.engines.devices import (
    close,
    compilations,
    on_8_devices,
    run_on_8_devices,
    starts_them,
)
from tests.engines.sums import sums
from tests.engines.tasks import logistic
from tests.helpers.problems import quadratic, random_federated
from tests.helpers.runs import results

OPTIMIZER = optax.sgd(0.1, momentum=0.5)
TWO_BY_TWO = functools.partial(lanes_engine, lanes=2, devices=4, model_devices=2)


def test_an_array_is_divided_along_its_longest_axis_that_can_be():
    assert spec((10_004, 96), 2) == PartitionSpec(AXIS, None)
    assert spec((3, 3, 32, 64), 4) == PartitionSpec(None, None, None, AXIS)
    assert spec((64, 64), 4) == PartitionSpec(None, AXIS)
    assert spec((101, 50), 2) == PartitionSpec(None, AXIS)  # 101 cannot
    assert spec((101, 51), 2) == SAME
    assert spec((1023,), 1023) == SAME  # small
    assert spec((5000,), 1) == SAME


@functools.cache
def problem(name: str) -> tuple[Model, FederatedData]:
    """A small model of each kind, yet not tiny, with synthetic examples of five clients."""
    rng = np.random.default_rng(0)
    sizes = [6, 2, 2, 2, 2]  # so that two groups have different numbers of steps
    owner, n = np.repeat(np.arange(5), sizes), sum(sizes)
    examples: dict[str, dict[str, np.ndarray]] = {
        "linear": {"x": rng.normal(size=(n, 5000)) / 70, "y": rng.normal(size=n)},
        "cnn": {"x": rng.uniform(size=(n, 8, 8)), "y": rng.integers(5, size=n)},
        "lstm": {"tokens": rng.integers(3, 60, (n, 5))},
    }
    models = {
        "linear": lambda: linear(5000),
        "cnn": lambda: cnn(classes=5, height=8, width=8),
        "lstm": lambda: lstm(words=60, embedding=16, hidden=32),
    }
    arrays = {
        key: array.astype(np.float32 if array.dtype == np.float64 else np.int32)
        for key, array in examples[name].items()
    }
    return models[name](), from_arrays(arrays, owner, np.arange(n) % 3)


@pytest.mark.slow
@starts_them
def test_the_slow_ones_on_8_simulated_devices():
    run_on_8_devices("slow", "test_slices.py")


@on_8_devices
@pytest.mark.parametrize(
    "name", ["linear", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "lstm"))]
)
def test_two_groups_of_two_equal_the_reference(name: str):
    model, data = problem(name)
    work = ClientWork(model, OPTIMIZER, data.num_domains, batch_size=2, epochs=2)
    close(sums(TWO_BY_TWO, work, data, 5, 1), sums(reference_engine, work, data, 5, 1))


@on_8_devices
def test_clients_of_two_groups_are_added_up_one_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """As on an accelerator; each group has its own number of clients that end at a step."""
    monkeypatch.setattr(lanes_file, "clients_at_once", lambda _: 1)
    model, data = problem("linear")
    work = ClientWork(model, OPTIMIZER, data.num_domains, batch_size=2, epochs=3)
    close(sums(TWO_BY_TWO, work, data, 5, 1), sums(reference_engine, work, data, 5, 1))


@pytest.mark.slow
@on_8_devices
def test_one_group_of_four_whose_cohorts_come_one_by_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "fits", lambda _: False)
    model, data = problem("linear")
    work = ClientWork(model, OPTIMIZER, data.num_domains, batch_size=2)
    engine = functools.partial(lanes_engine, devices=4, model_devices=4)
    close(sums(engine, work, data, 5, 2), sums(reference_engine, work, data, 5, 2))


@on_8_devices
def test_the_state_stays_in_slices_and_a_round_is_compiled_once():
    model, data = problem("linear")
    algorithm = agnostic_fedavg(
        model, data, clients_per_round=4, batch_size=2, client_optimizer=OPTIMIZER,
        server_optimizer=optax.sgd(1.0, momentum=0.9), engine=TWO_BY_TWO,
    )  # fmt: skip
    assert algorithm.choices["devices"] == 4
    assert algorithm.choices["model_devices"] == 2
    state, _ = algorithm.round(algorithm.init(), algorithm.cohort(1))
    with compilations() as compiled:
        for t in (2, 3):
            state, _ = algorithm.round(state, algorithm.cohort(t))
        assert compiled() == 0
    large = [leaf for leaf in jax.tree.leaves(state) if leaf.size == 5000]
    assert len(large) == 2  # w and the momentum
    for leaf in large:
        shards = {shard.device: shard.data for shard in leaf.addressable_shards}
        assert [shard.shape for shard in shards.values()] == [(2500, 1)] * 4
        np.testing.assert_array_equal(here(leaf), leaf)
        assert here(leaf).sharding.device_set == {jax.devices()[0]}


@pytest.mark.slow
@on_8_devices
def test_a_device_needs_less_memory():
    model, data = problem("linear")
    work = ClientWork(model, OPTIMIZER, data.num_domains, batch_size=2)
    sampler = sampling.uniform(data.num_clients, 4, 0)

    def needed(group: int) -> int:
        engine = lanes_engine(work, data, sampler, 0, lanes=2, devices=4, model_devices=group)
        in_place = engine.compile(lambda state, _: state)
        params = in_place(jax.jit(model.init)(jax.random.key(0)), None)
        sent = Broadcast(params, jnp.ones(data.num_domains))
        program = jax.jit(engine.sum_over_clients).lower(sent, engine.cohort(1)).compile()
        memory: Any = program.memory_analysis()
        return memory.temp_size_in_bytes

    assert needed(2) < 0.6 * needed(1)


@pytest.mark.slow
@on_8_devices
def test_a_run_is_stopped_and_goes_on_in_slices(tmp_path: Path):
    config = msgspec.structs.replace(logistic(), devices=4, model_devices=2)
    run(config, tmp_path / "whole")
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            config, tmp_path / "run", on_round=lambda r: done.append(r["round"]),
            should_stop=lambda: done[-1] == 2,
        )  # fmt: skip
    run(config, tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "engine.json").read_text())["model_devices"] == 2
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@on_8_devices
def test_devices_that_cannot_be_grouped_are_refused(monkeypatch: pytest.MonkeyPatch):
    model, data = problem("linear")
    sampler = sampling.uniform(data.num_clients, 4, 0)
    work = ClientWork(model, OPTIMIZER, data.num_domains, batch_size=2)
    with pytest.raises(
        BadInput, match="model_devices is 3; it must divide the number of devices, 4"
    ):
        lanes_engine(work, data, sampler, 0, devices=4, model_devices=3)
    with pytest.raises(BadInput, match="must divide the number of devices, 8"):
        auto_engine(work, data, sampler, 0, model_devices=16)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(BadInput, match="where several processes share a run it must be 1"):
        lanes_engine(work, data, sampler, 0, devices=4, model_devices=2)


def test_a_tiny_model_is_not_divided():
    data = random_federated(0)
    work = ClientWork(quadratic(), OPTIMIZER, data.num_domains, batch_size=2)
    with pytest.raises(BadInput, match="model_devices is 2; a model of 1 numbers"):
        lanes_engine(work, data, sampling.uniform(6, 4, 0), 0, model_devices=2)


def test_what_is_divided_has_no_kernels_of_our_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "is_hopper", lambda: True)
    model = cnn(classes=2)
    params = jax.eval_shape(model.init, jax.random.key(0))
    examples = {"x": jnp.zeros((4, 28, 28)), "y": jnp.zeros(4, jnp.int32)}

    def kernels(work: ClientWork) -> int:
        loss = work.model.per_example_loss
        traced = jax.make_jaxpr(lambda w: loss(w, examples, jax.random.key(0)))(params)
        return str(traced).count("pallas_call[")

    work = ClientWork(model, OPTIMIZER, 2, batch_size=4)
    assert kernels(work) == 1
    # Of one device, since nothing runs here.
    with jax.set_mesh(jax.make_mesh((1,), (AXIS,), axis_types=(AxisType.Auto,))):
        assert kernels(divided(work, 2)) == 0
