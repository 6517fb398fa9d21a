# SPDX-License-Identifier: Apache-2.0
"""Federations under differential privacy: clients add the noise, and keep count of it."""

import io
import json
import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from agnosticfl.channels.dp.noise import NOISE_WIDTH, Scale, scale_for, too_long, units_for
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.deploy.check import Joiner
from agnosticfl.deploy.check import _privacy as check_privacy
from agnosticfl.deploy.flower import audited, federation
from agnosticfl.deploy.flower.federation import LOG, NoProgress
from agnosticfl.deploy.node.allowance import LEDGER
from agnosticfl.deploy.node.ledger import Ledger, read
from agnosticfl.deploy.node.noised import with_noise
from agnosticfl.deploy.private import (
    budget_of,
    cost,
    fewest_honest,
    in_words,
    planned_sums,
    privacy_of,
)
from agnosticfl.deploy.seeing.keeper import watched
from agnosticfl.deploy.seeing.page import page
from agnosticfl.deploy.seeing.prometheus import metrics
from agnosticfl.deploy.seeing.status import STATUS, Server, Status, View
from agnosticfl.deploy.seeing.status import read as read_status
from agnosticfl.deploy.seeing.terminal import shown
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import ROUNDED, Charge
from agnosticfl.registry import MODELS
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.graph import quorum, reckoned_dishonest
from tests.deploy.federations import NODES, simulate
from tests.deploy.private import BUDGET, private_config, private_toy, with_known_noise
from tests.deploy.secure import asked, play, secure_toy, silent_twice


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def assert_near(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Up to a few units of the whole numbers, of which each client may be one off."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for name in ("params", "domain_weights", "loss", "count", "beta"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("each", [0, 2000])
def test_a_private_federation_is_the_simulation_with_distributed_noise(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, each: int
):
    """With noise that is known: the clients' four shares are those that the simulator draws."""
    with_known_noise(monkeypatch, each)
    task = private_toy(dp={"epsilon": 1e5, "weight": 20.0, "clip": 5.0})  # nothing is absent
    play(tmp_path, keys, rounds=2, task=task)
    found = read_records(tmp_path / "run")
    assert_near(found, simulate(tmp_path / "same", task.config))
    assert found[0]["params"] != found[1]["params"]


def test_the_noise_of_a_private_federation_is_as_large_as_the_simulators(
    tmp_path: Path, keys: Path
):
    """w moves by its noise mostly, for which 2 rounds of 4 clients are far too few."""
    task = private_toy(rounds=1)
    play(tmp_path, keys, task=task)
    (found,) = read_records(tmp_path / "run")
    (again,) = simulate(tmp_path / "same", task.config)
    assert found["params"] != again["params"]
    assert (found["seconds"], found["time"]) == (None, None)  # they tell how many examples


def test_what_a_deployed_run_claims(tmp_path: Path, keys: Path):
    """For whom, with which trust, without amplification; each sum that was asked for is counted."""
    task = private_toy()
    play(tmp_path, keys, rounds=2, task=task)
    said = read_json(tmp_path / "run" / "privacy.json")
    z = task.config.dp["noise_multiplier"]  # type: ignore[index]
    assert said["noise_multiplier"] == pytest.approx(z, rel=1e-4)
    assert (said["sums"], said["honest"], said["mode"], said["bounds"]) == (
        2,
        2,
        "distributed",
        "fixed",
    )
    assert said["trusted"] == "nobody, if 2 clients in every sum are honest"
    assert "none" in said["amplification"]
    expected = accounting.spent(budget_of(BUDGET), [Charge(z, 2)])
    assert said["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert said["budget"] == BUDGET
    assert read_json(tmp_path / "run" / "summary.json")["privacy"] == said
    for place in range(NODES):
        assert read(tmp_path / f"{place}.ledger")[task.run].sums == 2


def test_the_noise_of_the_least_honest_survivors_is_what_is_counted():
    """z² in each number, of the sum of the honest shares alone."""
    config = private_config()
    privacy = privacy_of(config, contribution_shapes(MODELS.build(config.model, "model"), 5))
    size, z = 100_000, privacy.scale.noise
    honest = config.dp["honest"]  # type: ignore[index]
    zeros = np.zeros(size, np.int32)
    shares = [with_noise(zeros, privacy.scale)["int32"].astype(float) for _ in range(honest)]
    variance = np.var(sum(shares)) / privacy.scale.units**2
    assert variance == pytest.approx(z**2, rel=5 * math.sqrt(2 / size))
    assert z >= config.dp["noise_multiplier"]  # type: ignore[index]
    assert not np.array_equal(shares[0], shares[1])


@pytest.mark.parametrize("clients", [3, 4, 10, 33, 60, 100, 1000])
def test_whoever_drops_out_enough_honest_clients_are_in_the_sum(clients: int):
    """Of every cohort that a round of this task may have, every sum that can be opened."""
    secure = {"name": "simulate", "most_clients": math.ceil(1.3 * clients)}
    config = msgspec.structs.replace(secure_toy().config, clients_per_round=clients, secure=secure)
    honest = fewest_honest(config)
    for cohort in range(clients, math.ceil(1.3 * clients) + 1):
        alive = quorum(cohort)
        assert alive - reckoned_dishonest(cohort, 1) >= honest >= 1


@pytest.mark.parametrize("clients", [3, 100, 10_000])
@pytest.mark.parametrize("noise", [0.5, 20.0, 1000.0])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_vectors_and_noise_have_room_in_32_bits(clients: int, noise: float, share: float):
    """Ten standard deviations of all shares, on top of vectors that all point one way."""
    honest = max(int(share * clients), 1)
    units = units_for(clients, noise * math.sqrt(clients / honest))
    scale = scale_for(noise, units, honest)
    widest = NOISE_WIDTH * scale.sigma * math.sqrt(clients)
    assert clients * units * (1 + ROUNDED) + widest < 2**31


def test_a_client_knows_what_a_sum_costs_as_the_library_for_that_does():
    rdp: Any = pytest.importorskip("dp_accounting.rdp")
    orders = np.concatenate([np.linspace(1.02, 10, 900), np.geomspace(10, 1e6, 800)])
    for rho, delta in ((1e-3, 1e-5), (0.1, 1e-6), (3.0, 1e-8)):
        expected = rdp.compute_epsilon(orders, orders * rho, delta)[0]
        assert accounting.concentrated_epsilon(rho, delta) == pytest.approx(expected, rel=1e-9)
    assert accounting.concentrated_epsilon(0.0, 1e-6) == 0


def test_an_attempt_that_fails_is_charged_too(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """Its vectors had left, and others might have opened their sum; fresh noise is on the next."""
    once, task = silent_twice("Confirmed"), private_toy(rounds=1)
    play(tmp_path, keys, faults={2: once, 3: once}, task=task, minimum=NODES)
    assert "round 1 abandoned (attempt 1 of 2)" in caplog.text
    assert [read(tmp_path / f"{n}.ledger")[task.run].sums for n in range(NODES)] == [2] * NODES
    assert read_json(tmp_path / "run" / "privacy.json")["sums"] == 2


def test_a_charge_is_on_the_disc_before_the_vector_is_computed_let_alone_sent(
    tmp_path: Path, keys: Path
):
    """A client that dies at its work has spent what it would have."""
    task, seen = private_toy(rounds=1), list[int]()

    def dies(call: Any) -> Any:
        seen.append(sum(read(tmp_path / f"{n}.ledger")[task.run].sums for n in _there(tmp_path)))
        raise KeyError(call.round)

    with pytest.raises(NoProgress):
        play(tmp_path, keys, task=task, contribute=dies, attempts=1)
    assert seen == [1, 2, 3, 4]
    ledger = tmp_path / "0.ledger"
    assert ledger.stat().st_mode & 0o077 == 0


def _there(folder: Path) -> list[int]:
    return [n for n in range(NODES) if (folder / f"{n}.ledger").exists()]


def test_a_client_whose_budget_is_spent_declines_and_says_why(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """As others who decline: the server hears that it does not join, not why."""
    task = private_toy(rounds=2)
    each, spent = cost(task.config), planned_sums(task.config)
    row = {task.run: {"sums": spent, "rho": spent * each}}
    (tmp_path / "3.ledger").write_text(json.dumps(row))
    grid = play(tmp_path, keys, rounds=2, task=task)
    assert f"its privacy budget in {task.run} is spent: ε" in caplog.text
    (last,) = (node for node in grid.nodes[3:])
    asked_of = [asked(m) for m in grid.sent if m.metadata.dst_node_id == last]
    assert set(asked_of) == {"Join"}
    assert read(tmp_path / "3.ledger")[task.run].sums == spent
    assert len(read_records(tmp_path / "run")) == 2


def test_the_operator_may_allow_less_in_all_runs_together(tmp_path: Path):
    file = tmp_path / "ledger"
    one = Ledger(file, "one", 0.1, epsilon=8.0, delta=1e-6, most=5.0)
    for _ in range(2):
        one.charge()
    other = one._replace(run="other")
    assert other.spent().epsilon == 0
    assert other.spent().all_runs == one.spent().epsilon
    while other.unwilling() is None:
        other.charge()
    with pytest.raises(BadInput, match=r"budget for all runs is spent: ε .* of 5 .* operator"):
        other.charge()
    assert other.spent().all_runs <= 5
    assert other.spent(1).all_runs > 5
    # Of a larger δ the same sums are worth less.
    assert other._replace(delta=1e-3).spent().all_runs < other.spent().all_runs


def test_a_run_has_its_own_budget_which_lasts_for_what_was_planned(tmp_path: Path):
    config = private_config(rounds=20)
    dp: Any = config.dp
    ledger = Ledger(tmp_path / "ledger", "run", cost(config), dp["epsilon"], dp["delta"])
    for _ in range(planned_sums(config)):
        ledger.charge()
    assert 7.9 < ledger.spent().epsilon <= 8
    assert "is spent" in str(ledger.unwilling())


@pytest.mark.parametrize("content", ["", "{", '{"run": {"sums": "no"}}', '{"run": {"x": 1}}'])
def test_a_ledger_that_cannot_be_read_ends_it(tmp_path: Path, content: str):
    (tmp_path / "ledger").write_text(content)
    with pytest.raises(BadInput, match="which says what this client has spent"):
        Ledger(tmp_path / "ledger", "run", 0.1, 8, 1e-6).charge()


def test_without_a_ledger_a_client_takes_no_part(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audited, "ledger_of", _without(audited.ledger_of))
    with pytest.raises(NoProgress):
        play(tmp_path, keys, task=private_toy(rounds=1), attempts=1)
    assert "this node was started without its ledger" in caplog.text


def _without(ledger_of: Any) -> Any:
    return lambda task, node: ledger_of(task, {k: v for k, v in node.items() if k != "ledger"})


def test_the_audit_log_says_what_was_spent(tmp_path: Path, keys: Path):
    task = private_toy(rounds=2)
    play(
        tmp_path,
        keys,
        rounds=2,
        task=task,
        node_config=lambda place: {"audit": str(tmp_path / f"{place}.audit")},
    )
    lines = [json.loads(line) for line in (tmp_path / "0.audit").read_text().splitlines()]
    left = [line for line in lines if line["event"] == "contributed"]
    assert [line["privacy_spent"]["sums"] for line in left] == [1, 2]
    assert left[1]["privacy_spent"]["epsilon"] > left[0]["privacy_spent"]["epsilon"] > 0
    assert left[0]["noise"]["noise_multiplier"] == task.config.dp["noise_multiplier"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("dp", "words"),
    [
        ({"quantile": 0.5}, "`agnosticfl bounds`"),
        ({"mode": "central"}, "in which the server adds the noise"),
        ({"test_seed": 1}, "for tests in the simulator"),
        ({"silos": "domain"}, "the unit of privacy"),
        ({"population": 100}, "leave it out"),
        ({"honest": 3}, "of a round of 4 clients 2 are sure to be honest"),
        ({"noise_multiplier": 0.5}, "keeps epsilon 8.0 at delta 1e-06 for"),
        ({"delta": 2.0}, "delta is 2.0; it must lie between 0 and 1"),
    ],
)
def test_what_would_not_be_private_in_a_federation_is_refused(dp: dict[str, Any], words: str):
    with pytest.raises(BadInput, match=words) as refused:
        private_config(dp=dp)
    assert "\n" not in str(refused.value)


def test_what_is_said_at_first_names_both_units():
    said = in_words(private_config())
    assert "for every client with all that it holds" in said
    assert "covers each owner of examples (patient) within it" in said


def test_in_the_clear_there_is_no_privacy():
    with pytest.raises(BadInput, match=r"read every client's own vector.*deploy with --secure"):
        private_config(secure=None)


def test_a_total_that_so_many_clients_cannot_add_up_to_is_noticed():
    scale = Scale(units=2**20, sigma=1000, shares=2)
    rng = np.random.default_rng(0)
    honest = rng.integers(-3000, 3000, 1000)
    honest[0] = 3 * 2**20
    assert too_long([honest], scale, 3) is None
    random = rng.integers(-(2**31), 2**31, 1000)
    assert "times as long as 3 clients and their noise can be" in str(too_long([random], scale, 3))


def test_a_vector_that_is_too_long_is_left_out_whatever_made_it(caplog: pytest.LogCaptureFixture):
    scale = Scale(units=2**20, sigma=10, shares=2)
    one = np.zeros(50, np.int32)
    one[0] = 2**20
    near = with_noise(one, scale)["int32"]
    assert abs(near[0] - 2**20) < 200
    assert caplog.text == ""
    for bad in (2 * one, np.full(50, -(2**31), np.int32)):
        assert np.abs(with_noise(bad, scale)["int32"]).max() < 200
    assert "too long, and is left out" in caplog.text


def test_the_check_before_joining_says_what_is_left(tmp_path: Path):
    task = private_toy()
    nowhere = Path("nowhere")
    joiner = Joiner("host:1", nowhere, nowhere, nowhere, nowhere, tmp_path)
    assert check_privacy(joiner, task) == "ε 0 of 8 is spent (δ 1e-06)"
    row = {"sums": 1, "rho": cost(task.config)}
    (tmp_path / LEDGER).write_text(json.dumps({task.run: row}))
    assert "of 8 is spent" in check_privacy(joiner, task)
    with pytest.raises(BadInput, match="the most its operator allows"):
        check_privacy(joiner._replace(most_epsilon=1.0), task)


def test_what_was_spent_is_seen_and_times_are_not_told(tmp_path: Path, keys: Path):
    """In the status, on the page, for Prometheus and in the terminal."""
    task, out = private_toy(), tmp_path / "run"
    LOG.setLevel(logging.INFO)
    with watched(LOG, task, out, str(tmp_path), "text"):
        play(tmp_path, keys, rounds=2, task=task)
    status = read_status(tmp_path, STATUS, Status)
    assert status is not None
    assert status.privacy is not None
    assert 0 < status.privacy.epsilon < status.privacy.budget == 8
    assert [(each.time, each.seconds) for each in status.history] == [(None, None)] * 2
    server = Server(1, 0.0, str(out), "127.0.0.1:8000", "", ())
    seen = View(0.0, False, server, status)
    assert f"{status.privacy.epsilon:.3g} of 8" in page(seen)
    assert f"agnosticfl_privacy_epsilon {status.privacy.epsilon}" in metrics(seen)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(shown(seen))
    assert f"ε {status.privacy.epsilon:.3g} of 8 is spent" in console.export_text()
