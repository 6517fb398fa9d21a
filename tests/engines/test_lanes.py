# SPDX-License-Identifier: Apache-2.0
"""Lanes: packing, plans, memory, compilation. That the sums are right is in test_engines.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.channels.fixed_point import in_fixed_point
from agnosticfl.core import sampling, tree
from agnosticfl.core.channel import PLAIN, Channel
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.random import example_order
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes as lanes_file
from agnosticfl.engines import lanes_engine, padded_engine, reference_engine, steps_engine
from agnosticfl.engines.auto import has_convolution
from agnosticfl.engines.base import EngineBuilder
from agnosticfl.engines.helpers import feed, plan
from agnosticfl.errors import BadInput
from tests.helpers.problems import federated, quadratic, random_federated


def test_longest_first_by_hand():
    # 5 → lane 0, 4 → lane 1, 3 → lane 1 (4 < 5), 3 → lane 0 (5 < 7), 1 → lane 1 (7 < 8).
    lane, begin, load = plan.longest_first(np.array([[3, 1, 5, 3, 4]]), lanes=2)
    assert lane.tolist() == [[1, 1, 0, 0, 1]]
    assert begin.tolist() == [[4, 7, 0, 5, 0]]
    assert load.tolist() == [[8, 8]]


@given(
    seed=st.integers(0, 10_000),
    clients=st.integers(1, 12),
    width=st.integers(1, 8),
    narrow=st.integers(1, 8),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 5),
)
def test_a_plan_holds_every_step_of_every_client_once(
    seed: int, clients: int, width: int, narrow: int, epochs: int, batch_size: int
):
    data = random_federated(seed, clients=12)
    work = ClientWork(quadratic(), optax.sgd(0.1), 3, batch_size, epochs)
    planner = plan.make_planner(work, data, sampling.uniform(12, clients, seed), seed)
    cohorts = plan.plans(planner, range(3, 6))
    layouts = plan.layouts(planner, cohorts, width, narrow)
    for t, cohort, layout in zip(range(3, 6), _rows(cohorts), _rows(layouts), strict=True):
        sizes = data.sizes[cohort.clients]
        for k, (client, size) in enumerate(zip(cohort.clients, sizes, strict=True)):
            order = example_order(seed, t, np.array([client]), np.array([size]), size)[0]
            own = cohort.rows[cohort.offsets[k] : cohort.offsets[k + 1]]
            np.testing.assert_array_equal(own, data.offsets[client] + order)
            at, lane = np.nonzero((layout.slot == k) & (layout.number >= 0))
            assert len(set(lane)) <= 1  # all on one lane, one after the other, in order
            np.testing.assert_array_equal(at - at[:1].sum(), np.arange(len(at)))
            assert layout.number[at, lane].tolist() == list(range(epochs * -(-size // batch_size)))
        assert not np.any(layout.number[layout.steps :] >= 0)
        assert not np.any(layout.number[layout.wide :, narrow:] >= 0)
        assert layout.wide <= layout.steps


def one_long_client() -> FederatedData:
    rng = np.random.default_rng(0)
    sizes = [60, 3, 4, 2, 5, 1, 4, 3]
    x = [rng.normal(size=n).tolist() for n in sizes]
    return federated(x, [rng.integers(2, size=n).tolist() for n in sizes], num_domains=2)


def test_a_few_lanes_take_the_last_steps_where_one_client_is_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes_file, "TINY", 0)  # a model that is not
    work = ClientWork(quadratic(), optax.sgd(0.1, momentum=0.5), 2, batch_size=2)

    def sums(engine: EngineBuilder) -> tuple[Any, Any]:
        seam = engine(work, one_long_client(), sampling.uniform(8, 8, 1), 1)
        sent = Broadcast(work.model.init(jax.random.key(0)), jnp.array([0.3, 0.7]))
        return seam.compile(seam.sum_over_clients)(sent, seam.cohort(3)), seam.choices

    found, choices = sums(functools.partial(lanes_engine, lanes=4))
    # 30 steps of one client, 15 of the others on three lanes: 5 × 4 + 25 × 1 instead of 30 × 4.
    assert (choices["lanes"], choices["narrow"]) == (4, 1)
    expected, _ = sums(reference_engine)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("channel", [PLAIN, in_fixed_point(8)(None)], ids=["plain", "encoded"])
def test_clients_that_end_are_added_up_a_few_at_a_time(
    at_once: int, channel: Channel, monkeypatch: pytest.MonkeyPatch
):
    """Four lanes of clients of the same size end together, those of others alone."""
    monkeypatch.setattr(lanes_file, "TINY", 0)
    monkeypatch.setattr(lanes_file, "clients_at_once", lambda _: at_once)
    sizes = [4, 4, 4, 4, 7, 0, 1, 2]
    values = [[float(k)] * n for k, n in enumerate(sizes)]
    data = federated(values, [[k % 2] * n for k, n in enumerate(sizes)], num_domains=2)
    work = ClientWork(quadratic(), optax.sgd(0.1, momentum=0.5), 2, batch_size=2, channel=channel)

    def total(engine: EngineBuilder) -> Any:
        seam = engine(work, data, sampling.uniform(8, 8, 1), 1)
        state = channel.init()
        sent = Broadcast(work.model.init(jax.random.key(0)), jnp.array([0.3, 0.7]), state)
        encoded = seam.compile(seam.sum_over_clients)(sent, seam.cohort(3))
        return channel.decode(state, encoded, jax.random.key(1))[0]

    found, expected = total(functools.partial(lanes_engine, lanes=4)), total(reference_engine)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), found, expected)


def test_lanes_stay_where_clients_are_of_a_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes_file, "TINY", 0)
    data = federated([[1.0] * 6] * 8, [[0] * 6] * 8, num_domains=1)
    work = ClientWork(quadratic(), optax.sgd(0.1), 1, batch_size=2)
    engine = lanes_engine(work, data, sampling.uniform(8, 8, 1), 1, lanes=4)
    assert engine.choices["narrow"] == 4


def test_another_seed_is_the_same_program():
    """So the seeds of a comparison are compiled once, if there is a cache."""
    work = ClientWork(quadratic(), optax.sgd(0.1), 2, batch_size=2)

    def program(seed: int) -> str:
        seam = lanes_engine(work, one_long_client(), sampling.uniform(8, 4, seed), seed, lanes=2)
        sent = Broadcast(work.model.init(jax.random.key(0)), jnp.array([0.3, 0.7]))
        compiled: Any = seam.compile(seam.sum_over_clients)
        return compiled.lower(sent, seam.cohort(1)).as_text()

    assert program(1) == program(2)


def _rows(stacked: Any) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(stacked[0]))]


@pytest.mark.parametrize(
    "engine", [functools.partial(lanes_engine, lanes=2), steps_engine, padded_engine]
)
@pytest.mark.parametrize("resident", [True, False])
def test_a_round_is_compiled_once_whatever_the_cohort(
    engine: EngineBuilder, resident: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feed, "fits", lambda _: resident)
    traces = 0

    def loss(params: Any, examples: Any) -> jax.Array:
        nonlocal traces
        traces += 1
        return params["w"] * examples["x"]

    rng = np.random.default_rng(0)
    sizes = rng.geometric(0.004, size=40)  # cohorts of 4 have from 100 to 2000 examples
    data = federated([[1.0] * n for n in sizes], [[0] * n for n in sizes], num_domains=1)
    algorithm = agnostic_fedavg(
        from_functions(lambda _: {"w": jnp.float32(1.0)}, loss), data, clients_per_round=4,
        batch_size=50, client_optimizer=optax.sgd(0.1), engine=engine,
    )  # fmt: skip
    state = algorithm.init()
    counts: list[int] = []
    for t in range(1, 20):
        state, _ = algorithm.round(state, algorithm.cohort(t))
        counts.append(traces)
    assert counts[0] > 0
    assert set(counts) == {counts[0]}


def test_memory_does_not_grow_with_the_cohort():
    """The compiled round needs lanes × |W|, so ten times the clients need hardly more."""
    size = 10_000
    data = random_federated(1, clients=60)
    model = from_functions(
        lambda _: {"w": jnp.ones(size)}, lambda w, e: e["x"] * jnp.sum(w["w"]) / size
    )
    work = ClientWork(model, optax.sgd(0.1), 3, batch_size=2)

    def needed(clients: int) -> int:
        engine = lanes_engine(work, data, sampling.uniform(60, clients, 0), 0, lanes=3)
        compiled = jax.jit(engine.sum_over_clients).lower(
            Broadcast(model.init(jax.random.key(0)), jnp.ones(3)), engine.cohort(1)
        )
        memory = compiled.compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    few, many = needed(6), needed(60)
    assert few > 3 * size * 4
    assert many - few < size * 4


@pytest.mark.parametrize(("number", "rounded"), [(1, 256), (256, 256), (257, 512), (1025, 1280)])
def test_buckets(number: int, rounded: int):
    assert feed.bucket(number) == rounded


def test_a_block_has_the_bits_of_its_rounds_one_by_one():
    algorithm = agnostic_fedavg(
        quadratic(), random_federated(2, clients=30), clients_per_round=7, batch_size=3,
        client_optimizer=optax.sgd(0.1), engine=lanes_engine,
    )  # fmt: skip
    assert algorithm.block is not None
    states, infos = algorithm.block(algorithm.init())
    state = algorithm.init()
    for t in range(1, 12):
        state, info = algorithm.round(state, algorithm.cohort(t))
        inside = tree.row((states, infos), t - 1)
        jax.tree.map(np.testing.assert_array_equal, inside, (state, info))


def test_a_model_that_is_not_tiny_has_no_blocks():
    model = from_functions(lambda _: {"w": jnp.ones(5000)}, lambda w, e: e["x"] * w["w"][0])
    algorithm = agnostic_fedavg(
        model, random_federated(0), clients_per_round=2, batch_size=2,
        client_optimizer=optax.sgd(0.1), engine=lanes_engine,
    )  # fmt: skip
    assert algorithm.block is None


def test_only_a_convolution_is_seen_as_one():
    data = random_federated(0)

    def smooth(w: Any, e: Any) -> jax.Array:
        return w["w"] * jnp.convolve(e["x"], jnp.ones(3), mode="same")

    conv = from_functions(lambda _: {"w": jnp.float32(1)}, smooth)
    assert has_convolution(conv, data)
    assert not has_convolution(quadratic(), data)


def test_what_is_fetched_ahead_is_what_is_asked_for():
    made: list[int] = []

    def make(t: int) -> int:
        made.append(t)
        return t * t

    get = feed.prefetched(make)
    assert [get(t) for t in (1, 2, 3, 7, 8, 2)] == [1, 4, 9, 49, 64, 4]
    assert {1, 2, 3, 4, 7, 8, 9} <= set(made)


def test_a_number_of_lanes_below_one_is_refused():
    data = random_federated(0)
    work = ClientWork(quadratic(), optax.sgd(0.1), 3, batch_size=2)
    with pytest.raises(BadInput, match="number of lanes is 0; it must be at least 1"):
        lanes_engine(work, data, sampling.uniform(6, 2, 0), 0, lanes=0)
