# SPDX-License-Identifier: Apache-2.0
"""λ that follows the losses of held-out clients."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from jax import Array

from agnosticfl import BadInput, agnostic_fedavg, exponentiated_gradient, from_arrays, models
from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.dp.clipping import MARGIN, ClipBounds, private
from agnosticfl.channels.dp.noise import independent, scale_for
from agnosticfl.channels.fixed_point import in_fixed_point
from agnosticfl.core.channel import Channel, plain
from agnosticfl.core.contribution import report
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.state import ServerState
from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.store import write_store
from agnosticfl.engines import padded_engine
from agnosticfl.files import read_json
from agnosticfl.methods.base import Algorithm
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.registry import ENGINES
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import has_effect, resolve
from agnosticfl.runs.run import Stopped, run
from tests.helpers.problems import federated, linear, quadratic, random_federated
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


def test_held_out_clients_do_not_report_in_the_clear_beside_protected_ones():
    def other(shapes: Any) -> Channel:
        return plain(shapes)._replace(encode=lambda _state, contribution, _key: contribution)

    with pytest.raises(BadInput, match="held-out clients would report in the clear"):
        agnostic_fedavg(
            linear(), TRAIN, clients_per_round=3, heldout=TRAIN, channel=other, **OPTIONS
        )


SMALL = random_federated(2, clients=4)


def following(**changes: Any) -> Algorithm:
    options: dict[str, Any] = {"weight_rule": exponentiated_gradient(0.1), "seed": 3, **changes}
    return agnostic_fedavg(
        quadratic(), random_federated(1), clients_per_round=3, heldout=SMALL, **OPTIONS, **options
    )


def test_blocks_of_rounds_are_the_rounds_themselves():
    algorithm = following()
    assert algorithm.block is not None
    states, infos = jax.device_get(algorithm.block(algorithm.init()))
    state = algorithm.init()
    for t in range(1, 7):
        state, info = algorithm.round(state, algorithm.cohort(t))
        of_block = jax.tree.map(lambda leaf, t=t: leaf[t - 1], (states, infos))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            of_block,
            jax.device_get((state, info)),
        )
    assert states.round[-1] == len(states.round) > 100
    # A second block goes on where the first ended.
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    assert algorithm.block(last)[0].round[0] == len(states.round) + 1


def test_later_rounds_compile_nothing_more():
    algorithm = following(engine=padded_engine)
    state, _ = algorithm.round(algorithm.init(), algorithm.cohort(1))
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **about: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for t in (2, 3):
            state, _ = algorithm.round(state, algorithm.cohort(t))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []


def test_reports_in_fixed_point_move_lambda_as_in_the_clear():
    """Two words for each loss and exact counts: rounding is far below float32's."""
    bounds = Bounds(update=10.0, examples=50, loss=50.0)
    changes = {"channel": in_fixed_point(3, bounds), "report_channel": in_fixed_point(3, bounds)}
    secure, clear = (played(following(**c, engine=padded_engine), 4) for c in (changes, {}))
    np.testing.assert_array_equal(secure[1].heldout_count, clear[1].heldout_count)
    np.testing.assert_allclose(secure[1].heldout_loss, clear[1].heldout_loss, rtol=1e-3)
    np.testing.assert_allclose(secure[0].domain_weights, clear[0].domain_weights, rtol=1e-3)
    assert secure[1].channel_report["heldout_clients_clipped"] == 0

    # A loss of 50 and more is 50: reports have bounds as contributions have.
    tight = in_fixed_point(3, bounds._replace(loss=1e-3))
    info = played(following(report_channel=tight, engine=padded_engine), 1)[1]
    assert info.channel_report["heldout_clients_clipped"] > 0
    present = info.heldout_count > 0
    np.testing.assert_allclose(info.heldout_loss[present], 1e-3, rtol=1e-3)


def test_a_secure_report_of_three_numbers_by_hand():
    """2 + 1 + p exact words, no update: what a message holds and what it costs."""
    algorithm = following(
        channel=in_fixed_point(3), report_channel=in_fixed_point(3), engine=padded_engine
    )
    state, p = algorithm.init(), 3
    training = 1 + 2 + 2 * p + p + 1 + 1  # update, β, L, N, left out, clipped
    report = 2 + 2 * p + p + 1 + 1  # the same without an update
    assert algorithm.bytes_per_round(state).up == 3 * 4 * training + 3 * 4 * report


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 clients: 36 train, 12 are held out."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 600))
    rows = {"a": a, "b": b, "y": (a > b).astype(int), "who": np.arange(600) % 60}
    rows["kind"] = np.where(rng.random(600) < 0.3, "rare", "common")
    roles: dict[str, Any] = {"client": "who", "domain": "kind", "label": "y"}
    source = from_frame(rows, **roles, test_fraction=0.2, heldout_fraction=0.2)
    folder = tmp_path_factory.mktemp("reports")
    # As if means and deviations were agreed on: a private run refuses those of its own clients.
    write_store(source._replace(given=("preparation",)), folder / "store")
    (folder / "line.toml").write_text(TASK.format(path=folder / "store"))
    return folder


def noised(z: float) -> Channel:
    """Reports with noise z; bounds of 100 on ‖L^k‖ and 25 on n_k that nobody reaches."""
    release = independent(noise_source(Secrets(secret_of_a_test(0))), 1)
    scale = scale_for(z, 2**22, 1)
    return private(ClipBounds(1.0, 100.0, 25.0), scale, 3, None, release, reports=True)


def test_reports_with_hardly_any_noise_move_lambda_as_in_the_clear():
    nearly = following(report_channel=lambda _: noised(1e-5), engine=padded_engine)
    (state, info), (wanted, exact) = (
        played(algorithm, 3) for algorithm in (nearly, following(engine=padded_engine))
    )
    np.testing.assert_allclose(info.heldout_loss, exact.heldout_loss, rtol=1e-3)
    np.testing.assert_allclose(state.domain_weights, wanted.domain_weights, rtol=1e-3)


def test_the_noise_of_reports_is_what_was_promised_and_not_that_of_the_training():
    """Shares 0.51 and 0.49 of the squared norm: N_i has noise z · 25 / √0.49 (and the margin)."""
    channel, sums = noised(0.08), report(jnp.full(2, 50.0), jnp.full(2, 12.0))
    state = channel.init()
    message = jax.jit(channel.encode)(state, sums, jax.random.key(0))
    assert not jax.tree.leaves(message.update)

    def decoded(message: Any) -> Array:
        return channel.decode(state, message, jax.random.key(1)).total.domain_count

    many = jax.tree.map(lambda leaf: jnp.tile(leaf, (4000, *[1] * leaf.ndim)), message)
    counts = jax.vmap(decoded)(many)
    np.testing.assert_allclose(np.std(counts), 0.08 * 25 / 0.7 / MARGIN, rtol=0.03)
    np.testing.assert_allclose(np.mean(counts), 12.0, atol=0.15)


def private_task(store: Path, mode: str) -> Config:
    """Rounds one by one in the mode that has two tests."""
    engine = {"central": "padded", "distributed": "auto"}[mode]
    sets = ["dp={epsilon=1e4, delta=1e-3, examples=20, loss=2.0}", f"dp.mode='{mode}'", "rounds=4"]
    return resolve(str(store / "line.toml"), sets=[*sets, f"engine='{engine}'"])


@pytest.fixture(scope="module")
def private_run(store: Path) -> Path:
    """With noise by the server."""
    run(private_task(store, "central"), store / "central")
    return store / "central"


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_held_out_losses_are_noised_and_both_groups_are_accounted_for(
    store: Path, private_run: Path, mode: str
):
    folder = private_run
    if mode == "distributed":
        folder = store / "distributed"
        run(private_task(store, mode), folder)
    summary = read_json(folder / "summary.json")
    training, heldout = summary["privacy"], summary["privacy"]["heldout"]
    assert 0 < training["epsilon"] <= 1e4
    assert 0 < heldout["epsilon"] <= 1e4
    assert (training["population"], heldout["population"]) == (36, 12)
    if mode == "central":  # they are fewer, so a cohort of as many hides a client less
        assert heldout["noise_multiplier"] > training["noise_multiplier"]
    assert np.sum(summary["domain_weights"]) == pytest.approx(1)
    assert read_json(folder / "privacy.json") == summary["privacy"]


@pytest.mark.slow
def test_a_private_run_that_follows_held_out_clients_goes_on_with_both_groups_charged(
    store: Path, tmp_path: Path
):
    config = msgspec.structs.replace(private_task(store, "central"), rounds=5)
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        run(config, tmp_path / "run", should_stop=lambda: next(calls))
    assert read_json(tmp_path / "run" / "privacy.json")["heldout"]["rounds"] == 3
    spent = run(config, tmp_path / "run", resume=True)["privacy"]
    assert spent["rounds"] == spent["heldout"]["rounds"] == 5


def test_a_task_with_secure_sums_follows_held_out_clients(store: Path, tmp_path: Path):
    task = str(store / "line.toml")
    secure = ["secure={name='simulate'}", "rounds=4", "compress={bits=8}"]
    summary = run(resolve(task, sets=secure), tmp_path / "secure")
    records = read_records(tmp_path / "secure")
    assert all("heldout_clients_clipped" in r and "heldout_loss" in r for r in records)
    assert summary["domain_weights"] != [0.5, 0.5]


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


@pytest.mark.slow
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
