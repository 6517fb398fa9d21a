# SPDX-License-Identifier: Apache-2.0
"""Clients with other code than ours in secure rounds: what they can stop, and who is named."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

import agnosticfl.deploy.flower.client_app as client_module
from agnosticfl.deploy.cards import read_card
from agnosticfl.deploy.flower import federation, secure_answers
from agnosticfl.deploy.flower.records import REQUEST, SECURE
from agnosticfl.deploy.keys import make_signing_key
from agnosticfl.deploy.roster import first_roster, read_roster, write_roster
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.memory import State
from agnosticfl.secagg.messages import Shares, kind_of, pack, parse
from tests.deploy.fake import Fault
from tests.deploy.federations import (
    NODES,
    assert_close,
)
from tests.deploy.secure import play, silent_at, silent_twice


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


LOSS, COUNT = 3, 13  # where words begin, after one of the toy's parameter and two of β


def adds(
    place: int | None, word: int, monkeypatch: pytest.MonkeyPatch, rounds: Collection[int] = (1,)
) -> None:
    """Client 3 has other code: it adds a word to its vector, or takes random ones, in `rounds`."""
    theirs = client_module.answer

    def answer(call: Any, sums: Any, state: Any) -> dict[str, np.ndarray]:
        packed = theirs(call, sums, state)
        if call.client != 3 or call.round not in rounds:
            return packed
        words = packed["int32"].view(np.uint32)
        if place is None:
            rng = np.random.default_rng(word)
            return {"int32": rng.integers(0, 2**32, words.size, np.uint32).view(np.int32)}
        words[place] += np.uint32(word % 2**32)
        return packed

    monkeypatch.setattr(client_module, "answer", answer)


@pytest.mark.attack(
    "random words, or a large number in one",
    "totals are held against what so many clients can add up to",
)
@pytest.mark.parametrize(
    ("place", "word", "line"),
    [
        (None, 1, "clients are left out; it must be a whole number from 0 to 4"),
        (LOSS, 2**28, r"L_1 is [\d.]+; it must be at most 100 of each of \d+ examples"),
        (COUNT, -10_000, r"N_1 is -\d+; it must be a whole number from 0 on"),
        (0, 2**29, r"‖Σ βΔ‖ is [\d.]+; it must be at most 10 · β, which is \d+"),
    ],
)
def test_a_sum_that_cannot_be_is_given_up_and_the_run_goes_on(
    tmp_path: Path,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    simulated: Any,
    place: int | None,
    word: int,
    line: str,
):
    """No client opens another sum of round 1: w and λ stay as they were before."""
    adds(place, word, monkeypatch)
    play(tmp_path, keys, rounds=2, minimum=NODES)
    reason = "round 1 is given up, the model stays: the sum cannot be right: .*" + line
    assert re.search(reason, caplog.text)
    first, second = read_records(tmp_path / "run")
    assert (first["count"], first["step_taken"]) == ([0] * 5, False)
    assert first["params"] == [3.0]  # w_0
    np.testing.assert_allclose(first["domain_weights"], 0.2, rtol=1e-6)
    # Round 2 is what round 1 would have been, but for the order of examples.
    undisturbed = simulated(NODES, 1)[0]
    for name in ("loss", "domain_weights", "count"):
        np.testing.assert_allclose(second[name], undisturbed[name], rtol=1e-5)
    assert second["step_taken"]


def test_an_unregistered_key_does_not_join_and_a_stolen_place_is_found_out(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    stranger = {"signing-key": str(keys / "stranger.sign")}
    play(tmp_path / "a", keys, node_config=lambda place: stranger if place == 3 else {})
    assert "this signing key is not in the roster" in caplog.text
    assert_close(read_records(tmp_path / "a" / "run"), simulated(3, 1))
    caplog.clear()
    # Its own roster says that it is client 3, but its key is another one.
    forged, members = tmp_path / "forged", read_roster(keys / "roster").members
    cards = [*members[:3], read_card(keys / "stranger.card")]
    write_roster(forged, first_roster("forged", cards, make_signing_key(tmp_path / "keeper.sign")))
    liar = {**stranger, "roster": str(forged)}
    play(tmp_path / "b", keys, node_config=lambda place: liar if place == 3 else {})
    assert "failed: refused: roster: number 1, " in caplog.text
    assert_close(read_records(tmp_path / "b" / "run"), simulated(3, 1))


@pytest.mark.attack(
    "a client goes silent late in every attempt", "the next attempt is without it, if it is spared"
)
def test_who_is_lost_in_an_attempt_is_left_out_of_the_next_but_not_of_the_next_round(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    """Two are lost in the first attempt, of whom one can be spared in the second."""
    once = silent_twice("Confirmed")
    play(tmp_path, keys, rounds=2, faults={2: once, 3: once}, minimum=3)
    assert "round 1: left out since attempts failed with them: " in caplog.text
    first, second = (sum(record["count"]) for record in read_records(tmp_path / "run"))
    everybody = sum(simulated(NODES, 1)[0]["count"])
    assert first < second == everybody


def nonsense_at(kind: str) -> Fault:
    """Its replies of that kind are no messages."""

    def fault(reply: Message) -> Message | None:
        if silent_at(kind)(reply) is None:
            reply.content.config_records[SECURE][REQUEST] = b"\x91" * 1000 + b"\xc0"
        return reply

    return fault


@pytest.mark.attack(
    "nonsense in place of a message, in every attempt", "the sender is named and left out"
)
@pytest.mark.parametrize("kind", ["Keys", "Shares", "Masked", "Confirmed", "Revealed"])
def test_who_sends_nonsense_is_named_and_left_out(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture, kind: str
):
    play(tmp_path, keys, rounds=2, faults={1: nonsense_at(kind)}, minimum=3)
    assert "client 1 is dropped" in caplog.text
    _, second = read_records(tmp_path / "run")
    assert second["step_taken"]
    # In round 2 it is not asked any more.
    assert caplog.text.count("client 1 is dropped") == 1


def broken_boxes(reply: Message) -> Message:
    request: Any = reply.content.config_records.get(SECURE, ConfigRecord()).get(REQUEST, b"")
    if request and kind_of(request) == "Shares":
        sent = parse(request, Shares)
        boxes = {to: bytes(len(box)) for to, box in sent.boxes.items()}
        reply.content.config_records[SECURE][REQUEST] = pack(sent._replace(boxes=boxes))
    return reply


@pytest.mark.attack("boxes that do not open", "complaints; the retry is without the culprit")
def test_who_makes_boxes_that_do_not_open_stops_one_attempt(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    play(tmp_path, keys, rounds=1, faults={3: broken_boxes}, minimum=3)
    assert "round 1 abandoned (attempt 1 of 2)" in caplog.text
    assert "client 3 is left out from now on: it contradicts 3 clients" in caplog.text
    assert_close(read_records(tmp_path / "run"), simulated(3, 1))


@pytest.mark.attack("sums that cannot be, round after round", "the liar is found by leaving out")
def test_a_client_that_spoils_every_sum_is_found(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    adds(COUNT, -10_000, monkeypatch, range(1, 9))
    play(tmp_path, keys, rounds=8, minimum=3)
    taken = [record["step_taken"] for record in read_records(tmp_path / "run")]
    assert not taken[0]
    assert all(taken[5:])


@pytest.mark.attack(
    "a client deals wrong shares and is silent when unmasking", "the dealer is found by leaving out"
)
def test_a_client_whose_secret_cannot_be_opened_in_any_round_is_found(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    theirs = secure_answers.protocol.answer

    def deals_other_secrets(member: Any, state: State, request: bytes, *more: Any) -> Any:
        if member.place != 3 or kind_of(request) != "Peers":
            return theirs(member, state, request, *more)
        lies = {"own_seed": bytes(16), "mask_seed": bytes(16)}
        lying = state._replace(rounds=[part._replace(**lies) for part in state.rounds])
        after, reply = theirs(member, lying, request, *more)
        seeds = [(part.own_seed, part.mask_seed) for part in state.rounds]
        true = zip(after.rounds, seeds, strict=True)
        parts = [part._replace(own_seed=own, mask_seed=mask) for part, (own, mask) in true]
        return after._replace(rounds=parts), reply

    monkeypatch.setattr(secure_answers.protocol, "answer", deals_other_secrets)
    play(tmp_path, keys, rounds=8, faults={3: silent_at("Revealed")}, minimum=3)
    taken = [record["step_taken"] for record in read_records(tmp_path / "run")]
    assert not taken[0]
    assert all(taken[5:])
