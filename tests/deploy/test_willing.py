# SPDX-License-Identifier: Apache-2.0
"""Clients that take no part just now cost time, and no attempt."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agnosticfl.deploy.flower import federation, willing
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.federation import Attempt, NoProgress, RoundPolicy, select
from agnosticfl.deploy.flower.records import to_record
from agnosticfl.deploy.flower.server_app import first_params, server_data
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.flower.willing import Looking
from agnosticfl.deploy.task import write_task
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from tests.deploy import secure
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid
from tests.deploy.federations import NODES, POLICY, assert_close, assert_same, toy

ONCE: dict[str, Any] = {"attempts": 1, "wait": 100.0}


class Time:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Time:
    passing = Time()
    monkeypatch.setattr(willing, "time", passing)
    monkeypatch.setattr(federation, "SHORTEST", 0.0)
    monkeypatch.setattr(federation.LOG, "propagate", True)
    caplog.set_level("INFO", "flwr")
    return passing


def busy(times: int) -> Callable[[int], str | None]:
    """A client's policy: at first it does not join, so many times."""
    left = [times]

    def policy(_: int) -> str | None:
        left[0] -= 1
        return "busy" if left[0] >= 0 else None

    return policy


def play(folder: Path, reluctance: dict[int, int], rounds: int = 1, **policy: Any) -> FakeGrid:
    task = toy(rounds)
    write_task(folder, task)
    apps = [
        client_app(folder, numpy_client, busy(reluctance.get(place, 0))) for place in range(NODES)
    ]
    grid = FakeGrid(apps)
    usual = POLICY._replace(minimum=NODES)._replace(**policy)
    strategy = AgnosticStrategy(task.config, folder / "run", usual, server_data(task, {"data": ""}))
    params = to_record(first_params(task, build(task.config).model))
    strategy.start(grid, params, rounds, POLICY.deadline)
    return grid


def test_who_declines_is_asked_again_and_the_others_work_once(
    tmp_path: Path, time: Time, simulated: Any, caplog: pytest.LogCaptureFixture
):
    grid = play(tmp_path, {0: 3, 1: 1}, rounds=2, **ONCE)
    assert_same(read_records(tmp_path / "run"), simulated(NODES))
    asked = [message.metadata.dst_node_id for message in grid.sent]
    assert [asked.count(node) for node in grid.nodes] == [2 + 3, 2 + 1, 2, 2]
    assert time.slept == [2.0, 2.0, 2.0]
    assert "abandoned" not in caplog.text
    assert (
        "round 1: 2 of 4 have answered; 2 of 4 connected take no part just now;"
        " they are asked again in 2 s"
    ) in caplog.text


def test_when_the_time_is_up_the_attempt_is_over(tmp_path: Path, time: Time):
    with pytest.raises(NoProgress):
        play(tmp_path, {0: 10**6}, **ONCE)
    assert sum(time.slept) == pytest.approx(100.0)
    assert time.slept == sorted(time.slept[:-1]) + time.slept[-1:]  # later and later
    assert len(time.slept) < 20


def test_a_client_that_fails_is_not_waited_for(tmp_path: Path, time: Time):
    def fails(_: Any) -> Any:
        raise ValueError

    task = toy(1)
    write_task(tmp_path, task)
    apps = [client_app(tmp_path, fails if place == 0 else numpy_client) for place in range(NODES)]
    strategy = AgnosticStrategy(
        task.config,
        tmp_path / "run",
        POLICY._replace(minimum=NODES, **ONCE),
        server_data(task, {"data": ""}),
    )
    params = to_record(first_params(task, build(task.config).model))
    with pytest.raises(NoProgress):
        strategy.start(FakeGrid(apps), params, 1, POLICY.deadline)
    assert time.slept == []


def reluctant(times: int, place: int) -> Callable[[Any], Any]:
    """A policy of a node among others with the same app, by the number of its own questions."""
    asked: dict[int, int] = {}

    def policy(context: Any) -> Any:
        own = context.node_config["partition-id"]
        asked[own] = asked.get(own, 0) + 1
        unwilling = own <= place and asked[own] <= times
        return lambda _: "busy" if unwilling else None

    return policy


def test_secure_rounds_wait_for_who_declines(
    tmp_path: Path,
    keys: Path,
    time: Time,
    simulated: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Two of four decline to join twice; one attempt is enough."""
    from agnosticfl.deploy.flower import client_app as module

    monkeypatch.setattr(module, "node_policy", reluctant(2, 1))
    secure.play(tmp_path, keys, minimum=4, **ONCE)
    assert_close(read_records(tmp_path / "run"), simulated(NODES, 1))
    assert time.slept == [2.0, 2.0]
    assert "round 1: 2 clients join, and 4 are needed; 2 of 4 connected" in caplog.text
    assert "abandoned" not in caplog.text


def test_a_node_that_is_not_in_the_roster_burns_no_attempt(
    tmp_path: Path, keys: Path, time: Time, caplog: pytest.LogCaptureFixture
):
    """Three are asked of four, of whom one has a key that nobody knows: it is passed over."""

    def node(place: int) -> dict[str, Any]:
        return {"signing-key": str(keys / "stranger.sign")} if place == 0 else {}

    secure.play(tmp_path, keys, rounds=3, node_config=node, clients=3, minimum=3, **ONCE)
    assert len(read_records(tmp_path / "run")) == 3
    assert time.slept == []
    assert "clients join, and 3 are needed; others are asked" in caplog.text
    assert "abandoned" not in caplog.text


def test_who_is_left_out_does_not_count_as_connected(monkeypatch: pytest.MonkeyPatch):
    """And who is asked last is asked only if others are too few."""
    nodes = list(range(10))
    grid: Any = SimpleNamespace(get_node_ids=lambda: nodes)
    policy = RoundPolicy(4, 1, over_selection=1.0, wait=0.0)
    attempt = Attempt(1, 1, "")
    assert set(select(grid, policy, 0, attempt, range(4), range(6))) == {6, 7, 8, 9}
    assert len(set(select(grid, policy, 0, attempt, range(4), range(8))) & {8, 9}) == 2
    looked: list[int] = []
    monkeypatch.setattr(federation.time, "sleep", lambda _: looked.append(1))
    select(grid, policy._replace(wait=0.01), 0, attempt, range(8))
    assert looked


def test_a_search_says_why_it_waits(time: Time, caplog: pytest.LogCaptureFixture):
    looking = Looking(RoundPolicy(3, 3, wait=10.0), Attempt(7, 1, ""))
    assert looking.wait_to_ask_again([1, 2], [1], [1, 2, 3], "1 joins")
    assert looking.unwilling == {2}
    assert time.slept == []
    assert looking.wait_to_ask_again([1, 3], [1], [1, 2, 3], "1 joins")
    assert time.slept == [2.0]
    assert "round 7: 1 joins; 2 of 3 connected take no part just now" in caplog.text
    assert looking.unwilling == set()  # all are asked anew
    time.now = 9.5
    assert looking.wait_to_ask_again([1, 2], [1, 2], [1, 2, 3], "2 join")
    assert time.slept == [2.0]  # the third was not asked since
    assert looking.wait_to_ask_again([1, 2, 3], [1, 2], [1, 2, 3], "2 join")
    assert time.slept == [2.0, 0.5]
    assert not looking.wait_to_ask_again([1, 2, 3], [1, 2], [1, 2, 3], "2 join")


def test_all_who_are_connected_get_their_turn_between_two_pauses(time: Time):
    """Two of ten are asked at a time, and nobody takes part: each is asked once, then a pause."""
    nodes = list(range(10))
    grid: Any = SimpleNamespace(get_node_ids=lambda: nodes)
    policy, attempt = RoundPolicy(2, 1, over_selection=1.0, wait=100.0), Attempt(1, 1, "")
    looking, asked = Looking(policy, attempt), list[int]()
    for pauses in (1, 2):
        while len(time.slept) < pauses:
            now = select(grid, policy, 0, attempt, (), looking.unwilling)
            asked += now
            assert looking.wait_to_ask_again(now, [], nodes, "nobody joins")
        assert sorted(asked) == sorted(nodes * pauses)
