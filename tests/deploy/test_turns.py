# SPDX-License-Identifier: Apache-2.0
"""Correlated noise in a federation: its server adds it, and clients keep their rounds apart."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.deploy.check import Joiner
from agnosticfl.deploy.check import _privacy as check_privacy
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.federation import NoProgress
from agnosticfl.deploy.flower.records import ROUND
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.node import noised
from agnosticfl.deploy.node.ledger import Ledger, read
from agnosticfl.deploy.private import budget_of, cost, in_words, planned_sums
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge
from agnosticfl.runs.records import read_records
from tests.deploy.federations import NODES, make_federation, simulate
from tests.deploy.private import BUDGET, private_config, private_toy, with_known_noise
from tests.deploy.secure import asked, play, silent_at, silent_twice

pytest.importorskip("dp_accounting")
pytest.importorskip("jax_privacy")

ALL = 2 * NODES  # clients, half of whom take part in a round
TURNS: dict[str, Any] = {"noise": "banded", "separation": 2}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of all clients, and their roster."""
    folder = tmp_path_factory.mktemp("many")
    make_federation(folder, [str(node) for node in range(ALL)])
    return folder


def rounds_of(grid: Any, node: int) -> list[int]:
    """The rounds in which a node was asked for its vector."""
    sent = [m for m in grid.sent if m.metadata.dst_node_id == node]
    work = [m for m in sent if m.metadata.message_type.startswith("train")]
    return [m.content.config_records[ROUND]["round"] for m in work]


@pytest.mark.parametrize("noise", ["banded", "buffered"])
def test_clients_take_turns_and_the_server_is_trusted_with_the_sum(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch, noise: str
):
    def by_a_client(*_: Any) -> Any:
        raise AssertionError("a client added noise")

    monkeypatch.setattr(noised, "discrete_gaussian", by_a_client)
    task = private_toy(rounds=4, dp={**TURNS, "noise": noise})
    grid = play(tmp_path, many, rounds=4, task=task, nodes=ALL)
    for place, node in enumerate(grid.nodes):
        own = rounds_of(grid, node)
        assert len(own) == 2
        assert own[1] - own[0] >= 2
        row = read(tmp_path / f"{place}.ledger")[task.run]
        assert (row.sums, row.last) == (2, own[1])
    said = read_json(tmp_path / "run" / "privacy.json")
    assert said["trusted"] == "the server, with the sum"
    assert (said["mode"], said["sums"], said["bounds"]) == ("central", 2, "fixed")
    assert said["noise"].startswith(noise)
    assert said["rounds_between_two_of_a_client"] == 2
    assert "honest" not in said
    z = task.config.dp["noise_multiplier"]  # type: ignore[index]
    expected = accounting.spent(budget_of(BUDGET), [Charge(z, 2)])
    assert said["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert 7.9 < said["epsilon"] <= 8
    # What was summed before the noise lies nowhere.
    assert not (tmp_path / "run.sum").exists()
    assert len({str(record["params"]) for record in read_records(tmp_path / "run")}) == 4


@pytest.mark.parametrize(("noise", "each"), [("banded", 0), ("banded", 2000), ("buffered", 0)])
def test_a_federation_with_correlated_noise_is_the_simulation_with_it(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, noise: str, each: int
):
    """With noise that is known, and all clients in every round."""
    with_known_noise(monkeypatch, each)
    dp = {"noise": noise, "separation": 1, "epsilon": 20.0, "examples": 10.0}
    task = private_toy(dp=dp)
    play(tmp_path, keys, rounds=2, task=task)
    in_the_clear = msgspec.structs.replace(task.config, secure=None)
    found, expected = read_records(tmp_path / "run"), simulate(tmp_path / "same", in_the_clear)
    for mine, theirs in zip(found, expected, strict=True):
        for name in ("params", "domain_weights", "count", "beta"):
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert found[0]["params"] != found[1]["params"]


@pytest.mark.attack(
    "the server asks a client again too soon for noise that later rounds take back",
    "a client keeps the rounds apart that the task says, by its own ledger",
)
def test_a_client_that_is_asked_too_soon_declines(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """All four are in round 1, and a server of other code wants them in round 2."""

    def nobody(self: SecureStrategy, t: int) -> set[int]:
        del self, t
        return set()

    monkeypatch.setattr(SecureStrategy, "_resting", nobody)
    task = private_toy(rounds=4, dp=TURNS)
    with pytest.raises(NoProgress):
        play(tmp_path, keys, rounds=2, task=task)
    words = f"its last round in {task.run} was 1, and round 2 comes too soon: there must be 2"
    assert words in caplog.text
    assert "failed" not in caplog.text  # to decline is none
    assert [read(tmp_path / f"{n}.ledger")[task.run].sums for n in range(NODES)] == [1] * NODES
    assert len(read_records(tmp_path / "run")) == 1


def test_a_round_that_is_tried_again_counts_once(tmp_path: Path, keys: Path):
    """A trusted server releases one sum of it, and no client opens two."""
    once, task = silent_twice("Confirmed"), private_toy(rounds=1, dp=TURNS)
    grid = play(tmp_path, keys, faults={2: once, 3: once}, task=task, minimum=NODES)
    assert [asked(m) for m in grid.sent].count(asked_for_vectors(grid)) == 2 * NODES
    assert [read(tmp_path / f"{n}.ledger")[task.run].sums for n in range(NODES)] == [1] * NODES


def asked_for_vectors(grid: Any) -> str:
    (kind,) = {asked(m) for m in grid.sent if m.metadata.message_type.startswith("train")}
    return kind


def test_a_ledger_keeps_rounds_apart(tmp_path: Path):
    file = tmp_path / "ledger"
    file.write_text('{"run": {"sums": 1, "rho": 0.1}}')  # as it was before rounds were noted
    ledger = Ledger(file, "run", 0.1, epsilon=8.0, delta=1e-6, separation=3)
    ledger.charge(5)
    assert read(file)["run"].last == 5
    for t in (1, 4, 6, 7):  # one that was before the last is none of a run that goes on
        assert f"was 5, and round {t} comes too soon" in str(ledger.unwilling(t))
        with pytest.raises(BadInput, match="comes too soon"):
            ledger.charge(t)
    ledger.charge(5)
    assert read(file)["run"].sums == 2
    ledger.charge(8)
    assert (read(file)["run"].sums, read(file)["run"].last) == (3, 8)
    # In another run, and without correlated noise, any round may come.
    assert ledger._replace(run="other").unwilling(6) is None
    assert ledger._replace(separation=0).unwilling(9) is None


@pytest.mark.parametrize("noise", ["banded", "buffered"])
def test_the_budget_lasts_for_the_rounds_of_one_client(tmp_path: Path, noise: str):
    config = private_config(rounds=21, dp={"noise": noise, "separation": 4})
    assert planned_sums(config) == 6
    dp: Any = config.dp
    ledger = Ledger(
        tmp_path / "ledger", "run", cost(config), dp["epsilon"], dp["delta"], None, dp["separation"]
    )
    for t in range(1, 22, 4):
        ledger.charge(t)
    assert 7.9 < ledger.spent().epsilon <= 8
    assert "is spent" in str(ledger.unwilling(25))


def test_such_a_run_does_not_go_on(tmp_path: Path, many: Path):
    task = private_toy(rounds=4, dp=TURNS)
    silent = {place: silent_at("Confirmed") for place in range(ALL)}
    with pytest.raises(NoProgress):
        play(tmp_path, many, rounds=4, task=task, nodes=ALL, faults=silent)
    with pytest.raises(BadInput, match="a run with correlated noise cannot go on"):
        play(tmp_path, many, rounds=4, task=task, nodes=ALL)


def test_who_sets_it_up_and_who_joins_hear_whom_they_trust(tmp_path: Path):
    task = private_toy(rounds=4, dp=TURNS)
    assert "the server is trusted with the sum" in in_words(task.config)
    assert "one of 2 rounds at most" in in_words(task.config)
    nowhere = Path("nowhere")
    joiner = Joiner("host:1", nowhere, nowhere, nowhere, nowhere, tmp_path)
    assert check_privacy(joiner, task).endswith("the server is trusted with the sum")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dp": {"noise": "banded"}}, "dp: separation is needed"),
        ({"dp": {**TURNS, "mode": "distributed"}}, "leave mode and honest out"),
        ({"dp": {**TURNS, "honest": 2}}, "leave mode and honest out"),
        ({"dp": {"separation": 2}}, "independent noise needs none"),
        ({"dp": TURNS, "evaluation_by": "clients", "evaluation_share": 0.4}, "evaluation_by ="),
        ({"dp": {**TURNS, "noise_multiplier": 0.5}}, "keeps epsilon 8.0 at delta 1e-06 for"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], words: str):
    with pytest.raises(BadInput, match=words) as refused:
        private_config(**more)
    assert "\n" not in str(refused.value)
