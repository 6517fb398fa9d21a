# SPDX-License-Identifier: Apache-2.0
"""Secure rounds over a grid of clients in this process: the real protocol, every step of it."""

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from agnosticfl.deploy.cards import signed_card
from agnosticfl.deploy.flower import federation, secure_answers
from agnosticfl.deploy.flower.records import REQUEST, SECURE
from agnosticfl.deploy.keys import make_signing_key, read_signing_key
from agnosticfl.deploy.roster import first_roster, next_roster, read_roster, write_roster
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.memory import State, load
from agnosticfl.secagg.messages import Masked, kind_of, parse
from tests.deploy.clients import numpy_client
from tests.deploy.federations import (
    NODES,
    assert_close,
    simulate,
)
from tests.deploy.secure import asked, play, secure_toy, silent_at, silent_twice


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def test_a_secure_federation_is_the_simulation_with_the_same_clients(
    tmp_path: Path, keys: Path, simulated: Any
):
    """The simulation is in the clear: the fixed point costs less than the tolerance."""
    play(tmp_path, keys, rounds=2)
    assert_close(read_records(tmp_path / "run"), simulated(NODES))


def test_few_bits_are_those_of_the_simulation(tmp_path: Path, keys: Path):
    """Two rounds, the first of which measures; masked vectors are as short as the ledger says."""
    compress = {"bits": 4}
    grid = play(tmp_path, keys, rounds=2, compress=compress)
    found = read_records(tmp_path / "run")
    expected = simulate(tmp_path / "same", secure_toy(2, compress=compress).config)
    assert_close(found, expected)
    assert found[0]["params"] != found[1]["params"]
    answers: list[Any] = [m.content.config_records[SECURE].get(REQUEST) for m in grid.received]
    vectors = [parse(a, Masked).vector for a in answers if a and kind_of(a) == "Masked"]
    p, ring = 5, 4 + 2  # bits for each of four clients, and for their sum
    assert [len(v) for v in vectors] == [math.ceil(ring / 8) + 4 * (3 * p + 4 + 5)] * 2 * NODES
    assert found[1]["bytes_up"] == sum(map(len, vectors)) / 2


@pytest.mark.parametrize(
    ("kind", "left"),
    [("Keys", 3), ("Shares", 3), ("Masked", 3), ("Confirmed", 4), ("Revealed", 4)],
)
def test_a_client_lost_at_any_step_leaves_the_exact_sum_of_the_others(
    tmp_path: Path,
    keys: Path,
    simulated: Any,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    left: int,
):
    """Once its masked vector is there, a client is in the sum, whatever becomes of it."""
    play(tmp_path, keys, faults={3: silent_at(kind)})
    assert_close(read_records(tmp_path / "run"), simulated(left, 1))
    assert "client 3 is dropped" in caplog.text
    assert "abandoned" not in caplog.text


def test_too_few_and_the_round_is_tried_again_with_new_keys(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    once, left = silent_twice("Confirmed"), list[State]()

    def spy(message: Message) -> None:
        if asked(message) == "Over":
            left.append(load((tmp_path / "0.memory").read_bytes()))

    grid = play(tmp_path, keys, faults={2: once, 3: once}, tamper=spy, minimum=NODES)
    assert "nobody can be spared of those with whom attempts failed" in caplog.text
    assert "round 1 abandoned (attempt 1 of 2): round" in caplog.text
    assert_close(read_records(tmp_path / "run"), simulated(NODES, 1))
    # Clients of the abandoned attempt are told, and forget its secrets at once.
    assert [asked(m) for m in grid.sent].count("Over") == NODES
    assert left[0].rounds[0].mask_seed
    assert left[1] == State(left[0].number)


def test_a_round_that_is_lost_while_it_is_opened_is_given_up(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """Two have revealed their seeds for round 1, and will not do so again."""
    once = silent_twice("Revealed")
    play(tmp_path, keys, rounds=2, faults={2: once, 3: once})
    assert "round 1 is given up, the model stays" in caplog.text
    first, second = read_records(tmp_path / "run")
    assert sum(first["count"]) == 0
    assert sum(second["count"]) > 0
    assert first["params"] != second["params"]


def test_what_a_client_answered_is_on_the_disc_before_the_answer_leaves(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its file, by `os.fsync`, and the name of the file in its folder, before the reply is made."""
    order: list[str] = []
    theirs, theirs_too = secure_answers.sync, secure_answers.RecordDict
    monkeypatch.setattr(secure_answers, "sync", lambda p: (order.append(str(p)), theirs(p)))
    made = lambda *a: (order.append("reply"), theirs_too(*a))[1]  # noqa: E731
    monkeypatch.setattr(secure_answers, "RecordDict", made)
    play(tmp_path, keys)
    assert order == [str(tmp_path), "reply"] * (len(order) // 2)
    assert len(order) == 2 * 6 * NODES


def test_a_client_that_is_killed_after_it_wrote_does_not_answer_again(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its memory of having opened round 1 is there, though the server never heard of it."""
    theirs = secure_answers.sync

    def dies(path: Path) -> None:
        theirs(path)
        if load((tmp_path / "0.memory").read_bytes()).opened:
            raise KeyboardInterrupt("killed")

    monkeypatch.setattr(secure_answers, "sync", dies)
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, keys)
    monkeypatch.undo()
    monkeypatch.setattr(federation, "SHORTEST", 0.01)
    play(tmp_path, keys)
    assert "helped to open the sum of round 1 already" in caplog.text


def test_a_roster_that_changed_is_followed_before_the_next_round_or_refused(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    """Client 3's operator puts a new file there, and his client keeps the one that it accepted."""
    caplog.set_level("INFO")
    first = read_roster(keys / "roster")
    file, accepted = tmp_path / "roster", tmp_path / "accepted"
    write_roster(accepted, first)
    node = {"roster": str(accepted), "roster-file": str(file)}
    *others, last = first.members
    key = read_signing_key(keys / "3.sign")
    moved = signed_card(key, last.name, last.node_key, last.domains, "room 12")
    keeper = read_signing_key(keys / "roster.sign")
    second = next_roster(first, [*others, moved], keeper)
    write_roster(file, second)
    play(tmp_path / "a", keys, node_config=lambda place: node if place == 3 else {})
    said = "roster 2: contact of 3 is room 12; before: this machine"
    assert [r.getMessage() for r in caplog.records].count(said) == 1
    assert read_roster(accepted) == second
    # The server has the old one still, so the client does not join.
    assert "refused: roster: number 2, " in caplog.text
    assert_close(read_records(tmp_path / "a" / "run"), simulated(3, 1))

    caplog.clear()
    stranger = make_signing_key(tmp_path / "stranger.sign")
    write_roster(file, first_roster("local", first.members, stranger))
    play(tmp_path / "b", keys, node_config=lambda place: node if place == 3 else {})
    assert "query.join: this client cannot answer: " in caplog.text
    assert "has another keeper than the accepted roster" in caplog.text
    assert "Traceback" not in caplog.text
    assert read_roster(accepted) == second
    assert_close(read_records(tmp_path / "b" / "run"), simulated(3, 1))


def test_what_went_wrong_on_a_client_stays_there(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    def fails(call: Any) -> Any:
        if call.client == 3:
            raise ValueError("patient Doe has no diagnosis")
        return numpy_client(call)

    grid = play(tmp_path, keys, contribute=fails)
    errors = [m.error.reason for m in grid.received if m.has_error()]
    assert errors == ["its own log says why"]
    assert "patient Doe" in caplog.text  # the client's log: all share one process here
