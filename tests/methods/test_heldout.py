# SPDX-License-Identifier: Apache-2.0
"""λ that follows the losses of held-out clients."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from agnosticfl import BadInput, agnostic_fedavg, exponentiated_gradient, from_arrays, models
from agnosticfl.core.channel import Channel, plain
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.state import ServerState
from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.store import write_store
from agnosticfl.methods.base import Algorithm
from agnosticfl.registry import ENGINES
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import has_effect, resolve
from agnosticfl.runs.run import Stopped, run
from tests.helpers.problems import federated, linear, random_federated
from tests.helpers.runs import results


def played(algorithm: Algorithm, rounds: int) -> tuple[ServerState, Any]:
    state, info = algorithm.init(), None
    for t in range(1, rounds + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
    return jax.device_get((state, info))


TRAIN = federated([[1.0], [3.0], [5.0]], [[0], [1], [1]], 3)
HELDOUT = federated([[2.0], [1.0, 0.5], [float("nan"), 9.0]], [[0], [1, 1], [0, 1]], 3)
OPTIONS: dict[str, Any] = {"batch_size": 2, "client_optimizer": optax.sgd(0.1)}


def test_one_round_by_hand():
    algorithm = agnostic_fedavg(
        linear(4.0),
        TRAIN,
        clients_per_round=3,
        weight_rule=exponentiated_gradient(0.1),
        heldout=HELDOUT._replace(offsets=HELDOUT.offsets[:3], client_ids=HELDOUT.client_ids[:2]),
        **OPTIONS,
    )
    state, info = played(algorithm, 1)
    # Loss x·w at w_0 = 4: training (4, 16, absent), held out (8, (4 + 2) / 2 = 3, absent).
    np.testing.assert_allclose(info.mean_domain_loss, [4, 16, 0])
    np.testing.assert_allclose(info.heldout_loss, [8, 3, 0])
    np.testing.assert_allclose(info.heldout_count, [1, 2, 0])
    weights = np.exp([0.8, 0.3, 0])
    np.testing.assert_allclose(state.domain_weights, weights / weights.sum(), rtol=1e-6)
    np.testing.assert_array_equal(info.domain_weights, state.domain_weights)
    np.testing.assert_allclose(state.window.counts, [[1, 2, 0]])  # of those who train
    # 3 clients train: w and α down; an update, β, L, N up. 2 report: w down; L, N up.
    down, up = 3 * (1 + 3) + 2 * 1, 3 * (1 + 1 + 3 + 3) + 2 * (3 + 3)
    assert algorithm.bytes_per_round(state) == (4 * down, 4 * up)


@pytest.mark.nan_input
def test_a_held_out_client_with_a_loss_that_is_no_number_does_not_count():
    algorithm = agnostic_fedavg(linear(4.0), TRAIN, clients_per_round=3, heldout=HELDOUT, **OPTIONS)
    _, info = played(algorithm, 1)
    np.testing.assert_allclose(info.heldout_loss, [8, 3, 0])
    np.testing.assert_allclose(info.heldout_count, [1, 2, 0])


@functools.cache
def end(engine: str) -> ServerState:
    algorithm = agnostic_fedavg(
        linear(),
        random_federated(1),
        clients_per_round=3,
        heldout=random_federated(2, clients=4),
        engine=ENGINES.get(engine),
        **OPTIONS,
    )
    return played(algorithm, 3)[0]


@pytest.mark.parametrize("name", ["lanes", "steps", "padded"])
def test_every_engine_follows(name: str):
    mine, wanted = end(name), end("reference")
    np.testing.assert_allclose(mine.domain_weights, wanted.domain_weights, rtol=1e-5)
    np.testing.assert_allclose(mine.params["w"], wanted.params["w"], rtol=1e-5)


def test_held_out_domains_must_be_those_of_the_training():
    with pytest.raises(BadInput, match="held-out domains differ from the training's: 0, 1, 2"):
        agnostic_fedavg(
            linear(), TRAIN, clients_per_round=3, heldout=federated([[1.0]], [[0]], 1), **OPTIONS
        )


def test_held_out_clients_report_in_the_clear_and_are_not_mixed_with_other_channels():
    def other(shapes: Any) -> Channel:
        return plain(shapes)._replace(encode=lambda _state, contribution, _key: contribution)

    with pytest.raises(BadInput, match="the channel must be plain"):
        agnostic_fedavg(
            linear(), TRAIN, clients_per_round=3, heldout=TRAIN, channel=other, **OPTIONS
        )


def memorable(rng: np.random.Generator, seen: bool) -> FederatedData:
    """Domain `small`: 10 examples with labels of chance and, if `seen`, a feature each.

    Domain `big`: 400 examples whose label is the sign of their first feature, but for a fifth.
    """
    x, y = np.zeros((410, 11), np.float32), rng.integers(2, size=410)
    x[:400, 0] = rng.choice([-1.0, 1.0], 400)
    y[:400] = (x[:400, 0] > 0) ^ (rng.random(400) < 0.2)
    if seen:
        x[400:, 1:] = 5 * np.eye(10)
    domains = np.repeat(["big", "small"], [400, 10])
    return from_arrays({"x": x, "y": y.astype(np.int32)}, np.arange(410) % 10, domains)


def test_a_memorised_domain_keeps_its_weight_only_if_it_is_held_out():
    rng = np.random.default_rng(0)
    train, heldout = memorable(rng, seen=True), memorable(rng, seen=False)

    def small_weight(**options: Any) -> float:
        algorithm = agnostic_fedavg(
            models.logistic(11, 2),
            train,
            clients_per_round=10,
            batch_size=41,
            client_optimizer=optax.sgd(1.0),
            weight_rule=exponentiated_gradient(0.1),
            **options,
        )
        state, info = played(algorithm, 60)
        assert info.mean_domain_loss[1] < 0.1 < info.mean_domain_loss[0]  # memorised
        return float(state.domain_weights[1])

    # From 0.5: about the big domain's loss of 0.5 against 0 or log 2 ≈ 0.69.
    assert small_weight() < 0.1
    assert small_weight(heldout=heldout) > 0.6


TASK = """# Which side of a line a point is on.
rounds = 12
clients_per_round = 3
batch_size = 10
weights_follow = "heldout"
[data]
name = "store"
path = "{path}"
[model]
name = "logistic"
features = 2
classes = 2
[client_optimizer]
name = "sgd"
learning_rate = 1.0
"""


def test_a_task_follows_held_out_clients_and_counts_their_bytes(tmp_path: Path):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300))
    rows = {"a": a, "b": b, "y": (a > b).astype(int), "who": np.arange(300) % 20}
    rows["kind"] = np.where(rng.random(300) < 0.3, "rare", "common")
    roles: dict[str, Any] = {"client": "who", "domain": "kind", "label": "y"}
    source = from_frame(rows, **roles, test_fraction=0.2, heldout_fraction=0.2)
    write_store(source, tmp_path / "store")
    (tmp_path / "line.toml").write_text(TASK.format(path=tmp_path / "store"))
    config = resolve(str(tmp_path / "line.toml"))
    summary = run(config, tmp_path / "run")
    records = read_records(tmp_path / "run")
    assert len(records[0]["heldout_loss"]) == len(records[0]["loss"]) == 2
    # w has 2·2 + 2 numbers, p = 2: each of 3 trains for 6 + 2 down and 6 + 1 + 2 + 2 up, each of 3
    # reports for 6 down and 2 + 2 up.
    assert summary["bytes"]["down_per_round"] == 4 * 3 * (8 + 6)
    assert summary["bytes"]["up_per_round"] == 4 * 3 * (11 + 4)

    calls = iter([False] * 4 + [True])
    with pytest.raises(Stopped):
        run(config, tmp_path / "resumed", should_stop=lambda: next(calls))
    run(config, tmp_path / "resumed", resume=True)
    assert results(tmp_path / "resumed") == results(tmp_path / "run")


def test_fedavg_follows_nobody_and_held_out_clients_must_be_there(tmp_path: Path):
    setting = "weights_follow=heldout"
    assert has_effect(resolve("toy", sets=[setting]), setting)
    for algorithm in ("fedavg", "fedprox", "q-fedavg", "drfa"):  # DRFA has reports of its own
        assert not has_effect(resolve("toy", algorithm, sets=[setting]), setting)
    with pytest.raises(BadInput, match="'heldout', but the data has no split 'heldout'"):
        run(resolve("toy", sets=[setting]), tmp_path / "run")
    with pytest.raises(BadInput, match="weights_follow in task 'toy' is 'held'; it must be"):
        run(resolve("toy", sets=["weights_follow=held"]), tmp_path / "run")
