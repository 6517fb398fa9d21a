# SPDX-License-Identifier: Apache-2.0
"""What all agreed on: who may begin a round, with whom, on which terms, for which domains."""

from typing import Any

import numpy as np
import pytest

from agnosticfl.secagg import member as client
from agnosticfl.secagg import primitives
from agnosticfl.secagg.joining import joining, question
from agnosticfl.secagg.memory import IDLE
from agnosticfl.secagg.messages import Join, Joined, Refused, Setup, pack, parse
from tests.secagg.federation import NOW, SERVER, Play, federation

TERMS = {"program": "0.2", "schema": "abc"}


def asked(**change: Any) -> Join:
    return question(federation(5, terms=TERMS)[0].agreement._replace(**change), SERVER, 1)


def test_a_client_joins_by_its_signature():
    members, question_ = federation(5, terms=TERMS), asked()
    for own in members:
        state, reply = client.answer(own, IDLE, pack(question_), NOW)
        assert [part.number for part in state.rounds] == [1]
        assert joining(own.agreement, question_, reply).place == own.place


@pytest.mark.attack(
    "a client joins in another's name",
    "joins are signed",
)
def test_a_join_in_anothers_name_or_to_another_question_is_refused():
    members, question_ = federation(5, terms=TERMS), asked()
    agreement = members[0].agreement
    _, reply = client.answer(members[1], IDLE, pack(question_), NOW)
    honest = parse(reply, Joined)
    for change, why in (
        ({"sender": 2}, "it says that it is client 2, but the signature is not that of the key"),
        ({"sender": 9}, "it says that it is client 9, who is not in the roster"),
        ({"signature": b"s" * 64}, "it says that it is client 1, but the signature"),
        ({"round": b"r" * 32}, "it answers another question"),
    ):
        with pytest.raises(Refused, match=why):
            joining(agreement, question_, pack(honest._replace(**change)))
    later = question(agreement, SERVER, 2)
    with pytest.raises(Refused, match="it answers another question"):
        joining(agreement, later, reply)


@pytest.mark.attack(
    "a server with another task, schema, program or roster",
    "named digests of what was agreed on",
)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"terms": {**TERMS, "schema": "xyz"}}, "schema: abc here, xyz on the server"),
        ({"terms": {"schema": "abc"}}, "program: 0.2 here, unknown on the server"),
        ({"terms": {**TERMS, "more": "x"}}, "more: unknown here, x on the server"),
        ({"rounds": 7}, "the roster here is not the server's"),
        ({"roster": [bytes([i]) * 32 for i in range(5)]}, "the roster here is not the server's"),
        ({"holdings": [("a",)] * 5}, "the roster here is not the server's"),
        ({"run": b"another"}, "the round is of another run"),
    ],
)
def test_on_other_terms_nobody_joins(change: dict[str, Any], why: str):
    own = federation(5, terms=TERMS)[0]
    with pytest.raises(Refused, match=f"^{why}$"):
        client.answer(own, IDLE, pack(asked(**change)), NOW)


def test_no_round_on_other_terms():
    """Even of those who joined: what is agreed on is in the set-up, too."""
    members = federation(5, terms=TERMS)
    other = [own._replace(agreement=own.agreement._replace(terms={})) for own in members]
    play = Play(other)
    play.members = members
    with pytest.raises(Refused, match="the server's roster or terms are not those here"):
        play.answer(0, play.server.requests[0])


@pytest.mark.attack(
    "somebody else begins a round",
    "the set-up is signed by the key in the app",
)
@pytest.mark.parametrize("clients", [5, 40])
def test_only_the_server_begins_a_round(clients: int):
    play = Play(federation(clients))
    request, before = play.server.requests[0], play.states[0]
    kind = Setup
    for signature in (b"s" * 64, primitives.signing_key().sign(b"anything")):
        forged = pack(parse(request, kind)._replace(signature=signature))
        with pytest.raises(Refused, match=f"^{kind.__name__} of the server: the signature is not"):
            play.answer(0, forged)
    changed = pack(parse(request, kind)._replace(number=77))
    with pytest.raises(Refused, match=f"^{kind.__name__} of the server: the signature is not"):
        play.answer(0, changed)
    assert play.states[0] == before


@pytest.mark.attack(
    "a number that locks a client out for ever",
    "numbers are bounded by the clock",
)
def test_no_number_locks_a_client_out():
    """No round is joined that lies ahead; others go on as before."""
    play = Play(federation(5))
    for number in (2**63 - 1, NOW + client.AHEAD + 1):
        with pytest.raises(Refused, match="s ahead of the clock here"):
            play.answer(0, pack(question(play.members[0].agreement, SERVER, number)))
    play.to_the_end()
    assert play.server.total is not None


HOLDINGS = [("a",), ("a",), ("a", "b"), ("b",), ("b", "c"), ("b",)]


@pytest.mark.attack(
    "the sums of a domain with one holder",
    "clients count the holders in the cohort",
)
def test_of_a_domain_with_few_holders_nobody_shows_sums():
    play = Play(federation(6, holdings=HOLDINGS))
    play.stage()
    assert play.refusals == {
        4: "domain 'c' has 1 holders in the cohort, fewer than 3: its sums would show this"
        " client's own; its operator may allow it (--alone)"
    }


def test_an_operator_may_allow_it():
    play = Play(federation(6, holdings=HOLDINGS, alone=("c",)))
    play.weighty = ("a", "b")
    play.to_the_end()
    np.testing.assert_array_equal(play.server.total, play.sum_of(range(6)))


@pytest.mark.attack(
    "the other holders of a domain are said to be lost",
    "clients count the holders among the survivors",
)
def test_holders_that_are_said_to_be_lost_do_not_count():
    """A server that says that the others dropped out would be shown the last one's sums."""
    holdings = [("a",)] * 3 + [("b",)] * 7
    play = Play(federation(10, holdings=holdings))
    play.weighty = ("a", "b")
    play.until("masked vectors").stage({0: "masked vectors"})
    play.stage()
    assert play.refusals.keys() == {1, 2}
    assert "domain 'a' has 2 holders among the survivors, fewer than 3" in play.refusals[1]


@pytest.mark.attack(
    "an α with weight for one client alone",
    "clients count who has weight",
)
def test_an_alpha_with_weight_for_few_is_refused():
    holdings = [("a",)] * 2 + [("b",)] * 8
    play = Play(federation(10, holdings=holdings, alone=("a",))).until("masked vectors")
    play.weighty = ("a",)
    with pytest.raises(Refused, match="abandoned"):
        play.stage()
    assert set(play.refusals.values()) == {
        "α gives weight to 'a', with 2 holders in the cohort, fewer than 3"
    }


@pytest.mark.attack(
    "an α with weight for one client alone",
    "clients count who has weight",
)
def test_an_alpha_with_weight_for_few_survivors_is_refused():
    holdings = [("a",)] * 3 + [("b",)] * 7
    play = Play(federation(10, holdings=holdings, alone=("a", "b"))).until("masked vectors")
    play.weighty = ("a",)
    play.stage({0: "masked vectors"})
    with pytest.raises(Refused, match="signed the list"):
        play.stage()
    assert set(play.refusals.values()) == {
        "α gives weight to 'a', with 2 holders among the survivors, fewer than 3"
    }
