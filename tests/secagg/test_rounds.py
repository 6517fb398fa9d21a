# SPDX-License-Identifier: Apache-2.0
"""Whole rounds: whoever drops out at whatever stage, the sum is that of those who are left."""

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.errors import BadInput
from agnosticfl.secagg import member as client
from agnosticfl.secagg import messages, primitives
from agnosticfl.secagg.agreement import graph_of, member, plan_of
from agnosticfl.secagg.draw import committee
from agnosticfl.secagg.memory import changed
from agnosticfl.secagg.messages import Complaint, Refused, Revealed, Shares, pack, parse
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.preparation import Preparation
from tests.secagg.federation import NOW, SERVER, STAGES, Play, federation


def left_at(silent: dict[int, str], clients: int, stage: str) -> set[int]:
    """Those who still replied at `stage`."""
    gone = STAGES[: STAGES.index(stage) + 1]
    return {c for c in range(clients) if silent.get(c) not in gone}


def test_the_sum_of_all():
    play = Play(federation(5)).to_the_end()
    assert play.server.dropped == {}
    assert list(play.server.survivors) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(5)))


@pytest.mark.parametrize("stage", STAGES)
def test_one_drops_out_at_each_stage(stage: str):
    play = Play(federation(5)).to_the_end({2: stage})
    alive = [0, 1, 2, 3, 4] if stage in ("survivors", "unmasking") else [0, 1, 3, 4]
    assert list(play.server.survivors) == alive
    assert play.server.dropped == {2: f"{stage}: no reply"}
    np.testing.assert_array_equal(play.server.total, play.sum_of(alive))


@given(st.integers(3, 9), st.data())
@settings(max_examples=60)
def test_any_drops_give_the_sum_of_those_left_or_a_refusal(clients: int, data: st.DataObject):
    drops = st.lists(
        st.sampled_from([None, None, None, *STAGES]), min_size=clients, max_size=clients
    )
    silent = {c: stage for c, stage in enumerate(data.draw(drops)) if stage}
    threshold = 2 * clients // 3 + 1
    shared, alive, signed, revealed = (left_at(silent, clients, s) for s in STAGES[1:])
    # Shares of t others open what those who are gone have left behind; fewer than 3 make no sum.
    someone_lost = shared != revealed
    possible = (
        len(alive) >= 3
        and len(signed) >= threshold
        and (len(revealed) >= threshold or not someone_lost)
    )
    play = Play(federation(clients))
    if possible:
        play.to_the_end(silent)
        assert set(play.server.survivors) == alive
        assert set(play.server.dropped) == set(silent)
        np.testing.assert_array_equal(play.server.total, play.sum_of(sorted(alive)))
    else:
        with pytest.raises(Refused, match=r"round 1 is abandoned at [a-z ]+: \d+ "):
            play.to_the_end(silent)
        assert play.server.total is None


@given(st.data())
@settings(max_examples=2)
def test_drops_on_the_ring(data: st.DataObject):
    clients = 36
    members = federation(clients)
    k, threshold = plan_of(members[0].agreement, clients)
    assert k < clients - 1
    spare = k + 1 - threshold  # so many may go, wherever they stand
    gone = data.draw(st.lists(st.integers(0, clients - 1), unique=True, max_size=spare))
    silent = {c: data.draw(st.sampled_from(STAGES)) for c in gone}
    play = Play(members).to_the_end(silent)
    alive = left_at(silent, clients, "masked vectors")
    assert set(play.server.survivors) == alive
    np.testing.assert_array_equal(play.server.total, play.sum_of(sorted(alive)))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_knows_with_whose_replies_alone_a_sum_can_come(stage: str):
    """All that come later stay; five of seven must."""
    for silent in range(4):
        play, gone = Play(federation(7)).until(stage), dict.fromkeys(range(silent), stage)
        assert play.server.suffices(set(range(silent, 7))) == (silent <= 2)
        if silent <= 2:
            assert play.to_the_end(gone).server.total is not None
        else:
            with pytest.raises(Refused, match="is abandoned"):
                play.to_the_end(gone)


def test_on_the_ring_it_depends_on_where_the_silent_stand():
    clients = 40
    play = Play(federation(clients))
    told = set(range(clients)) - set(committee(play.server.round, range(clients))[:5])
    assert not play.server.suffices(told)  # the ring cannot be drawn
    assert play.server.suffices(told | set(committee(play.server.round, range(clients))[:1]))
    play.until("masked vectors")
    order = graph_of(play.server.setup, play.server.ring).order
    apart = {order[round(clients / 12 * i)] for i in range(12)}
    assert play.server.suffices(set(order) - apart)
    together = set(order[:12])
    assert len(together) == len(apart)
    assert not play.server.suffices(set(order) - together)
    with pytest.raises(Refused, match=r"holders of client \d+'s secrets survived"):
        play.to_the_end(dict.fromkeys(together, "masked vectors"))


def test_too_few_at_each_stage_abandon_the_round():
    for stage in STAGES:
        play = Play(federation(5))
        with pytest.raises(Refused, match=f"round 1 is abandoned at {stage}"):
            play.to_the_end({0: stage, 1: stage, 2: stage})


def test_a_reply_that_cannot_be_used_drops_its_sender():
    play = Play(federation(5)).until("masked vectors")
    play.stage(change=lambda place, reply: reply[:-4] if place == 3 else reply)
    assert "bad message" in play.server.dropped[3]
    play.to_the_end()
    np.testing.assert_array_equal(play.server.total, play.sum_of([0, 1, 2, 4]))


def test_a_vector_of_another_length_drops_its_sender():
    def shorter(place: int, reply: bytes) -> bytes:
        sent = parse(reply, messages.Masked)
        return pack(sent._replace(vector=sent.vector[4:])) if place == 3 else reply

    play = Play(federation(5)).until("masked vectors")
    play.stage(change=shorter)
    assert play.server.dropped[3] == "masked vectors: the vector has 16 bytes, not 20"
    play.to_the_end()
    np.testing.assert_array_equal(play.server.total, play.sum_of([0, 1, 2, 4]))


def test_a_reply_in_anothers_name_or_of_another_round_drops_its_sender():
    members = federation(5)
    earlier = Play(members).to_the_end()
    play = Play(members, number=2)
    play.server.receive(1, play.answer(0, play.server.requests[0]))
    play.server.receive(2, earlier.replies["keys"][2])
    assert play.server.dropped == {
        1: "keys: Keys says it is of client 0",
        2: "keys: Keys is of another round",
    }


def test_keys_that_the_roster_does_not_know_drop_their_sender():
    members = federation(5)
    stranger = member(
        members[0].agreement._replace(
            roster=[primitives.verify_key(key := primitives.signing_key()), b"b" * 32, b"c" * 32]
        ),
        key,
    )
    play = Play(members)
    play.members = [members[0]._replace(signing_key=stranger.signing_key), *members[1:]]
    play.stage()
    assert play.server.dropped == {0: "keys: the signature is not that of the key in the roster"}


def test_a_reply_is_taken_once_and_only_from_who_was_asked():
    play = Play(federation(5)).until("masked vectors")
    replies = {c: play.answer(c, request) for c, request in play.server.requests.items()}
    for place, reply in [*replies.items(), (0, replies[0]), (77, replies[0])]:
        play.server.receive(place, reply)
    play.server.advance()
    play.server.receive(0, replies[0])  # too late: no reply to what is being asked now
    assert play.server.dropped == {
        0: "survivors: bad message: it is Masked, where Confirmed was expected"
    }
    play.to_the_end()
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(5)))


def lying(about: str, place: int):
    """A change of replies: one client reveals what is not so."""

    def change(client: int, reply: bytes) -> bytes:
        if client != place:
            return reply
        sent = parse(reply, Revealed)
        wrong = {c: bytes(16) for c in getattr(sent, about)} if about != "own_seed" else bytes(16)
        return pack(sent._replace(**{about: wrong}))

    return change


@pytest.mark.attack(
    "wrong shares or seeds when unmasking",
    "commitments; the liar is named, or it and whom it contradicts are suspected",
)
@pytest.mark.parametrize("about", ["alive", "dead", "own_seed"])
def test_one_who_lies_when_unmasking_does_not_change_the_sum(about: str):
    play = Play(federation(10))
    while play.server.stage != "unmasking":
        play.stage({9: "masked vectors"})
    play.stage({8: "unmasking"}, lying(about, 1))  # seven honest shares of seven that are needed
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(9)))
    assert list(play.server.cheated) == ([1] if about == "own_seed" else [])
    pairs = {"alive": {(8, 1)}, "dead": {(9, 1)}, "own_seed": set()}
    assert play.server.contradictions == pairs[about]


def test_shares_that_open_nothing_abandon_the_round():
    members = federation(5)
    play = Play(members)
    while play.server.stage != "unmasking":
        play.stage()
    with pytest.raises(Refused, match="the shares of client 4 do not give its secret"):
        play.stage({4: "unmasking"}, lying("alive", 1))
    assert play.server.doubtful == set(range(5))  # who it was, nobody can tell


BAD = [
    ((1, [0, 1]), "a cohort of 2 clients; it must be 3 or more"),
    ((1, [0, 1, 9]), "clients up to 9; the roster has 5"),
    ((0, [0, 1, 2]), "number of the secure round is 0"),
]


@pytest.mark.parametrize(("round", "problem"), BAD)
def test_a_round_that_cannot_be_is_refused(round: tuple[int, list[int]], problem: str):
    number, cohort = round
    with pytest.raises(BadInput, match=problem):
        Preparation(federation(5)[0].agreement, SERVER, number, dict.fromkeys(cohort, b"c" * 32))


BAD_SUMS = [
    ((1, 0), "a secure sum of 0 numbers"),
    ((1, 3, 4), "4 of 3 numbers in 32 bits"),
    ((1, 3, 0, 33), "0 of 3 numbers in 33 bits"),
]


@pytest.mark.parametrize(("asked", "problem"), BAD_SUMS)
def test_a_sum_that_cannot_be_is_refused(asked: tuple[int, int], problem: str):
    prepared = Play(federation(3)).until("masked vectors").server.prepared
    with pytest.raises(BadInput, match=problem):
        Opening(prepared, *asked)


BAD_AGREEMENTS = [
    ({"run": b""}, "run name has 0 bytes"),
    ({"roster": [b"short"] * 3}, "has not 32 bytes"),
    ({"roster": [b"k" * 32] * 3}, "holds a key twice"),
    ({"server": b"short"}, "the server's key has not 32 bytes"),
    ({"holdings": [{"a"}] * 4}, "domains of 4 clients are stated, of 5 in the roster"),
    ({"fewest": 1}, "fewest clients is 1; it must be from 2 to the 5"),
    ({"fewest": 6}, "fewest clients is 6; it must be from 2 to the 5"),
    ({"dishonest": -1}, "dishonest is -1"),
    ({"dropout": -0.1}, "dropout is -0.1"),
    ({"dropout": 0.34}, "dropout is 0.34"),
]


@pytest.mark.parametrize(("change", "problem"), BAD_AGREEMENTS)
def test_agreements_that_cannot_be_are_refused(change: dict, problem: str):
    agreement = federation(5)[0].agreement._replace(**change)
    with pytest.raises(BadInput, match=problem):
        Preparation(agreement, SERVER, 1, dict.fromkeys(range(5), b"c" * 32))


def test_a_key_that_is_not_registered_has_no_place():
    with pytest.raises(BadInput, match="not in the roster; register it first"):
        member(federation(3)[0].agreement, primitives.signing_key())


def broken_boxes(dealer: int, receivers: Collection[int]):
    """A change of replies: one client makes boxes that do not open."""

    def change(client: int, reply: bytes) -> bytes:
        if client != dealer:
            return reply
        sent = parse(reply, Shares)
        boxes = {c: bytes(len(b)) if c in receivers else b for c, b in sent.boxes.items()}
        return pack(sent._replace(boxes=boxes))

    return change


@pytest.mark.attack(
    "boxes that do not open",
    "complaints; the retry is without the culprit",
)
def test_who_makes_boxes_that_do_not_open_is_accused_by_all_who_got_one():
    play = Play(federation(10)).until("shares")
    play.stage(change=broken_boxes(3, [0, 1, 2]))
    play.stage()
    assert play.server.contradictions == {(0, 3), (1, 3), (2, 3)}
    assert play.server.dropped[0] == "masked vectors: it cannot open the boxes of 3"
    assert not play.server.cheated  # whether it was the one or the other, who knows
    play.to_the_end()
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(3, 10)))


@pytest.mark.parametrize("accused", [(), (1,), (77,)])
def test_a_complaint_of_what_was_not_given_is_one_that_lies(accused: tuple[int, ...]):
    play = Play(federation(5)).until("masked vectors")
    complaint = Complaint(play.server.sum, 1, accused)
    play.stage(change=lambda client, reply: pack(complaint) if client == 1 else reply)
    said = "masked vectors: it complains of boxes that it was not given"
    assert play.server.cheated == {1: said}
    assert not play.server.contradictions


def test_what_no_honest_client_sends_names_its_sender():
    play = Play(federation(10)).until("survivors")
    play.stage({2: "survivors"}, lambda client, reply: b"nonsense" if client == 1 else reply)
    assert list(play.server.cheated) == [1]  # and not 2, who is only silent
    assert set(play.server.dropped) == {1, 2}


def wrong_shares(play: Play, dealer: int, receivers: Collection[int]):
    """A change of replies: one client deals some others shares of other secrets than its own."""
    request, state = play.server.requests[dealer], play.states[dealer]
    lying = changed(state, play.part(dealer)._replace(own_seed=bytes(16), mask_seed=bytes(16)))
    _, forged = client.answer(play.members[dealer], lying, request, NOW)

    def change(place: int, reply: bytes) -> bytes:
        if place != dealer:
            return reply
        sent, other = parse(reply, Shares), parse(forged, Shares)
        boxes = {c: other.boxes[c] if c in receivers else box for c, box in sent.boxes.items()}
        return pack(sent._replace(boxes=boxes))

    return change


@pytest.mark.attack(
    "a client deals one holder a wrong share, to have it blamed",
    "a share that does not fit accuses both, and nobody is named for it alone",
)
def test_who_is_dealt_a_wrong_share_is_not_named_for_it():
    play = Play(federation(10)).until("shares")
    play.stage(change=wrong_shares(play, 9, [1]))
    play.stage({9: "masked vectors"})
    play.stage()
    play.stage({8: "unmasking"})  # client 1's share is among the first that are tried
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(9)))
    assert 1 not in play.server.cheated
    assert play.server.contradictions == {(9, 1)}
