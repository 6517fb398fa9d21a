# SPDX-License-Identifier: Apache-2.0
"""Clients who evaluate under differential privacy, in a federation and in the simulator."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.channels.dp.noise import by_clients, scale_among
from agnosticfl.channels.noised_tallies import TallyNoise, noised_tallies, told_with_noise
from agnosticfl.core.channel import Adders
from agnosticfl.core.metrics import Reading
from agnosticfl.core.tally import Form, Tally, told
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.server_app import no_data
from agnosticfl.deploy.node.examples import dealt
from agnosticfl.deploy.node.ledger import read
from agnosticfl.deploy.private import check_private, planned_sums
from agnosticfl.deploy.task import read_task
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.registry import MODELS
from agnosticfl.runs.build import Built, assemble, build, build_engine
from agnosticfl.runs.config import Config
from agnosticfl.runs.questions import num_questions
from agnosticfl.runs.records import read_records
from agnosticfl.runs.run import Stopped, run
from tests.deploy.federations import NODES
from tests.deploy.private import BUDGET, private_toy, with_known_noise
from tests.deploy.secure import play, secure_toy

# So much that nothing is all noise, and parity can be seen.
MUCH: dict[str, Any] = {"epsilon": 1e5, "weight": 20.0, "clip": 5.0, "examples": 300.0}
BY_CLIENTS: dict[str, Any] = {
    "evaluation_by": "clients",
    "evaluation_every": 1,
    "evaluation_share": 0.4,
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def simulate(folder: Path, config: Config, **more: Any) -> dict[str, Any]:
    """The same run in the simulator, whose clients are the nodes."""

    def make(config: Config, *_: Any) -> Built:
        other = {"evaluation_by": "server", "weights_follow": "train", "dp": None}
        whole = build(msgspec.structs.replace(config, **other)).data
        data = whole._replace(train=dealt(whole.train, NODES))
        model = MODELS.build(config.model, "model")
        return assemble(config, model, data, build_engine(config, None, None))

    return run(config, folder, make_built=make, **more)


@pytest.mark.parametrize("each", [0, 3000])
def test_a_private_federation_judges_as_the_simulation_does(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, each: int
):
    """With noise that is known, the clients' shares are those that the simulator draws."""
    with_known_noise(monkeypatch, each)
    task = private_toy(dp=MUCH, **BY_CLIENTS)
    play(tmp_path, keys, rounds=2, task=task)
    expected = simulate(tmp_path / "same", task.config)
    found = read_json(tmp_path / "run" / "summary.json")
    for mine, theirs in zip(
        read_records(tmp_path / "run"), read_records(tmp_path / "same"), strict=True
    ):
        assert_alike(mine["heldout"], theirs["heldout"])
    assert_alike(found["test"], expected["test"])
    assert found["best"]["round"] == expected["best"]["round"]
    assert found["examples"] == expected["examples"] == {}
    # Two rounds, two looks, and at the end the last model, which is the best too.
    sums = found["privacy"]["sums"]
    assert sums == read(tmp_path / "0.ledger")[task.run].sums
    assert sums == 2 + 2 + 1 <= planned_sums(task.config)
    assert expected["privacy"]["rounds"] == sums


def follow(folder: Path, keys: Path, dp: dict[str, Any] | None, rounds: int = 3) -> list[Any]:
    """The records of a federation whose λ follows what clients hold out."""
    by_clients = {**BY_CLIENTS, "evaluation_every": 0, "weights_follow": "heldout"}
    if dp is None:
        task = secure_toy(rounds, **by_clients)
    else:
        task = private_toy(rounds, dp=dp, **by_clients)
    play(folder, keys, rounds=rounds, task=task)
    return read_records(folder / "run")


def test_held_out_losses_move_the_domains_weights_under_differential_privacy(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without noise as they do in a federation that is not private; with noise, otherwise."""
    with_known_noise(monkeypatch, 0)
    expected = follow(tmp_path / "open", keys, None)
    found = follow(tmp_path / "silent", keys, MUCH)
    for mine, theirs in zip(found, expected, strict=True):
        for name in ("heldout_loss", "domain_weights"):
            np.testing.assert_allclose(mine[name], theirs[name], rtol=2e-3, err_msg=name)
    assert np.ptp(found[-1]["domain_weights"]) > 0.01
    monkeypatch.undo()
    noised = follow(tmp_path / "noised", keys, BUDGET, rounds=1)
    assert noised[0]["heldout_loss"] != pytest.approx(expected[0]["heldout_loss"], rel=0.01)


def test_each_report_is_charged_and_planned_for(tmp_path: Path, keys: Path):
    follow(tmp_path, keys, BUDGET, rounds=2)
    task = read_task(tmp_path)
    config = task.config
    check_private(config, MODELS.build(config.model, "model"), no_data(task))  # as `init` does
    asked = 2 + 2 + num_questions(config)  # rounds, reports, and what may be asked at the end
    assert planned_sums(config) >= asked + 2
    charged = {row.sums for row in read(tmp_path / "0.ledger").values()}
    assert charged == {read_json(tmp_path / "run" / "privacy.json")["sums"]}
    assert charged == {2 + 2 + 1}  # and at the end the last model
    by_clients: dict[str, Any] = {**BY_CLIENTS, "evaluation_every": 0}
    train = private_toy(2, None, **by_clients).config
    assert planned_sums(config) > planned_sums(train)
    z = [float(c.dp["noise_multiplier"]) for c in (config, train)]  # type: ignore[index]
    assert z[0] > z[1]


def test_weights_follow_no_data_of_the_server_under_differential_privacy():
    with pytest.raises(BadInput, match="or evaluation_by = 'clients'"):
        private_toy(weights_follow="heldout")


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for domain, values in expected.items():
        assert values["loss"] is not None
        assert found[domain]["loss"] == pytest.approx(values["loss"], rel=1e-3)


def test_a_look_that_a_resume_repeats_is_charged_again(tmp_path: Path):
    """Of those who train, the same budget: rounds and looks together."""
    config = private_toy(rounds=4, **BY_CLIENTS).config
    calls: list[Any] = []
    stop: dict[str, Any] = {"should_stop": lambda: len(calls) == 2, "on_round": calls.append}
    with pytest.raises(Stopped):
        simulate(tmp_path / "run", config, **stop)
    before = read_json(tmp_path / "run" / "privacy.json")
    assert before["rounds"] == 2 + 2
    summary = simulate(tmp_path / "run", config, resume=True)
    after = summary["privacy"]
    assert after["rounds"] >= 4 + 4 + 1
    assert before["epsilon"] < after["epsilon"] <= config.dp["epsilon"]  # type: ignore[index]
    assert after["rounds"] <= 4 + num_questions(config)


@pytest.mark.parametrize(
    ("dp", "more", "words"),
    [
        ({"silos": "domain"}, {}, "let the server evaluate"),
        ({}, {"weights_follow": "heldout"}, "set weights_follow = 'train'"),
        ({}, {"client_spread": True}, "client_spread"),
    ],
)
def test_what_would_leak_is_refused_in_the_simulator(
    tmp_path: Path, dp: dict[str, Any], more: dict[str, Any], words: str
):
    config = private_toy(**BY_CLIENTS).config
    own = {k: v for k, v in (config.dp or {}).items() if k != "honest"}
    config = msgspec.structs.replace(config, dp={**own, **dp}, secure=None, **more)
    with pytest.raises(BadInput, match=words):
        simulate(tmp_path / "run", config)


def form(*domains: str) -> Form:
    how = Reading(higher_is_better=False)
    return Form({"loss": how, "other": how}, {}, {}, domains, classes=0, longest=1)


def own_tally(loss: list[float], count: list[float]) -> Tally:
    both = np.stack([np.array(loss, float) * count, count])
    return Tally({"loss": both, "other": both}, {}, np.zeros(()))


def test_a_clients_tally_is_a_vector_of_norm_one_whatever_it_holds():
    noise = TallyNoise(scale_among(0.001, 4, 2), by_clients, {"loss": 5.0})
    channel = noised_tallies(noise)
    units = noise.scale.units
    for loss, count in (([1.0, 2.0], [1.0, 1000.0]), ([1e9, -1e9], [1.0, 1.0]), ([5, 5], [9, 0])):
        vector = channel.encode((), own_tally(loss, count), None)  # type: ignore[arg-type]
        assert np.linalg.norm(vector / units) <= 1 + 1e-5
        assert vector.dtype == np.int32
    nobody = channel.encode((), own_tally([1, 1], [0, 0]), None)  # type: ignore[arg-type]
    lost = own_tally([1, 1], [1, 1])._replace(left_out=np.ones(()))
    assert not nobody.any()
    assert not np.asarray(channel.encode((), lost, None)).any()  # type: ignore[arg-type]


def test_the_sum_is_read_as_means_over_clients_and_one_that_may_be_noise_is_not_read():
    noise = TallyNoise(scale_among(0.1, 4, 2), by_clients, {"loss": 5.0})
    channel, whole = noised_tallies(noise), form("a", "b")
    loss: list[list[float]] = [[1, 2], [3, 2], [2, 9], [2, 0]]
    count: list[list[float]] = [[10, 0], [1, 0], [7, 0], [7, 0]]
    total = sum(
        channel.encode((), own_tally(*each), None).astype(np.int64)  # type: ignore[arg-type]
        for each in zip(loss, count, strict=True)
    )
    found = told(told_with_noise(whole, noise), channel.decode((), total, None).total)  # type: ignore[arg-type]
    assert found.domains["a"]["loss"] == pytest.approx((1 + 3 + 2 + 2) / 4, rel=1e-4)
    assert found.domains["b"]["loss"] is None
    adders = Adders(np.ones(2), 4)  # type: ignore[arg-type]
    assert channel.implausible((), total, adders) is None
    assert channel.implausible((), np.full((2, 2), 2**31 - 1), adders) is not None
