# SPDX-License-Identifier: Apache-2.0
"""A client that joined a secure round and declines before it gives anything: nothing went wrong."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from agnosticfl.deploy.flower import federation, willing
from agnosticfl.deploy.flower.federation import Attempt, NoProgress, RoundPolicy
from agnosticfl.deploy.flower.records import AHEAD, SECURE
from agnosticfl.deploy.flower.willing import Looking
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.messages import kind_of
from tests.deploy.federations import NODES, assert_close, toy, toy_store
from tests.deploy.secure import asked, play

ONCE: dict[str, Any] = {"attempts": 1, "wait": 100.0}
LEAVES = "had joined and take no part now, so it is prepared anew"


class Pauses:
    """Time that only passes where the server waits for clients; something may happen then."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Pauses:
    passing = Pauses()
    monkeypatch.setattr(willing, "time", passing)
    monkeypatch.setattr(federation, "SHORTEST", 0.0)
    monkeypatch.setattr(federation.LOG, "propagate", True)
    caplog.set_level("INFO", "flwr")
    return passing


class Consents:
    """A file of consent for each node."""

    def __init__(self, folder: Path):
        self.folder = folder
        for place in range(NODES):
            self.give(place)

    def node(self, place: int) -> dict[str, Any]:
        return {"consent": str(self._file(place)), "audit": str(self.folder / f"{place}.audit")}

    def give(self, place: int) -> None:
        self._file(place).write_text(f"{toy().run}\n")

    def withdraw(self, place: int) -> None:
        self._file(place).unlink(missing_ok=True)

    def declined(self, place: int) -> list[dict[str, Any]]:
        """What this node has declined, as its audit log has it."""
        lines = map(json.loads, (self.folder / f"{place}.audit").read_text().splitlines())
        return [line for line in lines if line["event"] == "declined"]

    def _file(self, place: int) -> Path:
        return self.folder / f"{place}.consent"


def place_of(message: Message) -> int:
    return (message.metadata.dst_node_id - 2**63) // 2


def once(kind: str, happens: Callable[[int], object], ahead: bool = False) -> Any:
    """What happens, to whom, just before the first message of a kind reaches a client."""
    done: list[int] = []

    def tamper(message: Message) -> None:
        record = message.content.config_records.get(SECURE, ConfigRecord())
        beside: Any = record.get(AHEAD, b"")
        found = (kind_of(beside) if beside else "") if ahead else asked(message)
        if found == kind and not done:
            done.append(place_of(message))
            happens(done[0])

    return tamper


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [r for r in caplog.records if isinstance(r.args, dict) and r.args.get("event") == name]


def assert_nothing_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert "abandoned (attempt" not in caplog.text
    assert "left out" not in caplog.text
    assert not events(caplog, "lost")


@pytest.mark.parametrize("kind", ["Setup", "Peers", "Boxes"])
def test_a_consent_that_is_withdrawn_in_a_round_costs_no_attempt(
    tmp_path: Path,
    keys: Path,
    pauses: Pauses,
    simulated: Any,
    kind: str,
    caplog: pytest.LogCaptureFixture,
):
    """Two of four withdraw it, so that too few are left; there is one attempt, and they return."""
    consents, leave = Consents(tmp_path), (0, 1)
    pauses.meanwhile = lambda: [consents.give(place) for place in leave]
    tamper = once(kind, lambda _: [consents.withdraw(place) for place in leave])
    play(tmp_path, keys, node_config=consents.node, tamper=tamper, **ONCE)
    assert_close(read_records(tmp_path / "run"), simulated(NODES, 1))
    assert pauses.slept == [2.0]
    assert f"2 {LEAVES}" in caplog.text
    assert "round 1: 2 clients join, and 3 are needed; 2 of 4 connected" in caplog.text
    assert_nothing_went_wrong(caplog)
    for place in leave:
        at_once, asked_to_join = consents.declined(place)
        assert at_once["asked"].endswith(kind)
        assert asked_to_join["asked"] == "query.join: Join"
        assert "has not written" in at_once["why"]


@pytest.mark.parametrize("kind", ["Setup", "Peers", "Boxes"])
def test_others_take_the_place_of_who_leaves(
    tmp_path: Path, keys: Path, pauses: Pauses, kind: str, caplog: pytest.LogCaptureFixture
):
    """Three of four are asked, and one of them withdraws its consent for good."""
    consents = Consents(tmp_path)
    tamper = once(kind, consents.withdraw)
    play(tmp_path, keys, node_config=consents.node, tamper=tamper, clients=3, **ONCE)
    assert len(read_records(tmp_path / "run")) == 1
    assert pauses.slept == []
    assert f"1 {LEAVES}" in caplog.text
    assert_nothing_went_wrong(caplog)


@pytest.mark.parametrize("kind", ["Setup", "Peers"])
def test_who_leaves_a_round_that_is_prepared_ahead_is_not_lost_to_it(
    tmp_path: Path, keys: Path, pauses: Pauses, kind: str, caplog: pytest.LogCaptureFixture
):
    consents = Consents(tmp_path)
    tamper = once(kind, consents.withdraw, ahead=True)
    play(tmp_path, keys, rounds=2, node_config=consents.node, tamper=tamper, **ONCE)
    one, two = (sum(record["count"]) for record in read_records(tmp_path / "run"))
    assert two < one
    assert pauses.slept == []
    assert "is not in the next one: declined" in caplog.text
    assert_nothing_went_wrong(caplog)


def test_a_store_that_is_taken_away_is_no_failure(
    tmp_path: Path, keys: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
):
    """Of one of three clients, when its vector is asked for; the fourth takes its place."""
    stores = {place: toy_store(tmp_path / f"store-{place}") for place in range(NODES)}
    tamper = once("Boxes", lambda place: shutil.rmtree(stores[place]))
    grid = play(
        tmp_path,
        keys,
        node_config=lambda place: {"data": str(stores[place])},
        tamper=tamper,
        clients=3,
        **ONCE,
    )
    assert len(read_records(tmp_path / "run")) == 1
    assert pauses.slept == []
    assert "leaving the round: its store is not there" in caplog.text
    assert not any(reply.has_error() for reply in grid.received)
    assert_nothing_went_wrong(caplog)


def test_who_joins_and_leaves_again_and_again_is_as_good_as_lost(
    tmp_path: Path, keys: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
):
    """Two of four consent to join each time, and to nothing else: two preparations, no more."""
    consents = Consents(tmp_path)

    sent: list[str] = []

    def tamper(message: Message) -> None:
        sent.append(asked(message))
        if (place := place_of(message)) < 2:
            (consents.give if sent[-1] == "Join" else consents.withdraw)(place)

    with pytest.raises(NoProgress):
        play(tmp_path, keys, node_config=consents.node, tamper=tamper, **ONCE)
    assert sent.count("Setup") == 2 * NODES
    assert pauses.slept == []
    assert caplog.text.count(LEAVES) == 1
    assert "round 1 abandoned (attempt 1 of 1)" in caplog.text


def test_each_may_leave_once_in_an_attempt(pauses: Pauses):
    del pauses
    looking = Looking(RoundPolicy(3, 3), Attempt(1, 1, ""))
    assert looking.excuse([1, 2], "why")
    assert looking.unwilling == {1, 2}
    assert looking.excuse([2, 3], "why")
    assert not looking.excuse([1, 3], "why")
    assert not looking.excuse([], "why")
