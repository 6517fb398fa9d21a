# SPDX-License-Identifier: Apache-2.0
"""Secure rounds that are prepared while the one before is on: three exchanges of six are left."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from agnosticfl.deploy.flower import client_app as client_module
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.records import AHEAD, ROUND, SECURE
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.memory import load
from agnosticfl.secagg.messages import kind_of
from tests.deploy.fake import Fault
from tests.deploy.federations import NODES, assert_close, simulate, toy
from tests.deploy.secure import asked, play

ROUNDS = 4
WHOLE = ["Join", "Setup", "Peers", "Boxes", "Survivors", "Unmask"]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The simulation of all rounds."""
    return simulate(tmp_path_factory.mktemp("simulated") / "run", toy(ROUNDS).config)


def ahead(message: Message) -> str:
    record = message.content.config_records.get(SECURE, ConfigRecord())
    request: Any = record.get(AHEAD)
    return kind_of(request) if isinstance(request, bytes) else ""


def test_six_exchanges_for_the_first_round_and_three_for_every_other(
    tmp_path: Path, keys: Path, same: list[dict[str, Any]]
):
    grid = play(tmp_path, keys, rounds=ROUNDS)
    assert_close(read_records(tmp_path / "run"), same)
    to_first = [m for m in grid.sent if m.metadata.dst_node_id == grid.nodes[0]]
    assert [asked(m) for m in to_first] == [*WHOLE, *WHOLE[3:] * (ROUNDS - 1)]
    expected = [*[""] * 3, *WHOLE[:3] * (ROUNDS - 1), *[""] * 3]
    assert [ahead(m) for m in to_first] == expected
    # And nothing of it is left: no secret, and no round.
    left = [load((tmp_path / f"{place}.memory").read_bytes()) for place in range(NODES)]
    assert {(state.rounds, state.opened[b"toy-of-the-tests"]) for state in left} == {((), ROUNDS)}


def losing(kind: str, times: int = 1) -> Fault:
    """So many of its replies about the next round are lost, of those of that kind."""
    lost: list[Message] = []

    def fault(reply: Message) -> Message:
        if not reply.has_error() and ahead(reply) == kind and len(lost) < times:
            lost.append(reply)
            del reply.content.config_records[SECURE][AHEAD]
        return reply

    return fault


@pytest.mark.parametrize("kind", ["Joined", "Keys", "Shares"])
def test_who_is_lost_in_a_preparation_is_not_in_that_round_and_back_in_the_next(
    tmp_path: Path,
    keys: Path,
    same: list[dict[str, Any]],
    kind: str,
    caplog: pytest.LogCaptureFixture,
):
    play(tmp_path, keys, rounds=3, faults={3: losing(kind)}, minimum=3)
    counts = [sum(record["count"]) for record in read_records(tmp_path / "run")]
    everybody = sum(same[0]["count"])
    assert counts[1] < everybody
    assert [counts[0], counts[2]] == [everybody, everybody]
    if kind != "Joined":  # who does not join is not dropped
        assert "client 3 is dropped" in caplog.text


def test_a_preparation_that_fails_costs_three_exchanges_and_no_round(
    tmp_path: Path, keys: Path, same: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    faults = {place: losing("Keys") for place in (2, 3)}
    grid = play(tmp_path, keys, rounds=ROUNDS, faults=faults)
    assert "round 2 is not prepared ahead: round" in caplog.text
    assert "abandoned (attempt" not in caplog.text
    assert_close(read_records(tmp_path / "run"), same)
    kinds = Counter(asked(m) for m in grid.sent)
    assert kinds["Join"] == 2 * NODES
    assert kinds["Over"] == NODES  # the secrets of what was not prepared are forgotten


def test_a_round_that_fails_is_begun_anew(
    tmp_path: Path, keys: Path, same: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    """Two are lost in round 2, which was prepared; its second attempt is not, nor is round 3."""
    seen: Counter[str] = Counter()

    def lost_once(reply: Message) -> Message | None:
        kind = "" if reply.has_error() else asked(reply)
        seen[kind] += 1
        return None if kind == "Confirmed" and seen[kind] in (3, 4) else reply

    play(tmp_path, keys, rounds=ROUNDS, faults={2: lost_once, 3: lost_once}, minimum=NODES)
    assert "round 2 abandoned (attempt 1 of 2)" in caplog.text
    assert_close(read_records(tmp_path / "run"), same)


def test_a_client_declines_the_next_round_and_not_this_one(
    tmp_path: Path, keys: Path, same: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    """It ran out of power in round 1, and found some in round 2."""
    asked_before: Counter[int] = Counter()

    def policy(context: Any) -> Any:
        place = context.node_config["partition-id"]
        asked_before[place] += 1
        out_of_power = place == 3 and asked_before[place] == 2
        return lambda examples: f"power of {examples}" if out_of_power else None

    monkeypatch.setattr(client_module, "node_policy", policy)
    grid = play(tmp_path, keys, rounds=3, minimum=3)
    counts = [sum(record["count"]) for record in read_records(tmp_path / "run")]
    everybody = sum(same[0]["count"])
    assert counts[1] < everybody
    assert [counts[0], counts[2]] == [everybody, everybody]
    assert not [m for m in grid.received if b"power" in repr(m.content).encode()]


def test_cohorts_that_change_are_prepared_too(tmp_path: Path, keys: Path):
    """Three of four are in each round, drawn anew: who is new is asked on its own."""
    grid = play(tmp_path, keys, rounds=6, clients=3)
    records = read_records(tmp_path / "run")
    assert all(record["step_taken"] for record in records)
    kinds = Counter(asked(m) for m in grid.sent)
    assert kinds["Unmask"] == 3 * 6
    carried = Counter(ahead(m) for m in grid.sent)
    # Five preparations of three clients each, with this round's messages or on their own.
    for kind in WHOLE[:3]:
        assert carried[kind] + kinds[kind] == 3 * 6
        assert kinds[kind] > 3


class Killed(Exception):
    """The server."""


def test_a_server_that_died_begins_with_all_exchanges(
    tmp_path: Path, keys: Path, same: list[dict[str, Any]]
):
    """What was prepared is lost with it, and the clients go on."""

    def dies(message: Message) -> None:
        if asked(message) == "Unmask" and message.content.config_records[ROUND]["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        play(tmp_path, keys, rounds=ROUNDS, tamper=dies)
    grid = play(tmp_path, keys, rounds=ROUNDS)
    assert_close(read_records(tmp_path / "run"), same)
    assert Counter(asked(m) for m in grid.sent)["Join"] == NODES
