# SPDX-License-Identifier: Apache-2.0
"""The ring follows from numbers that all clients had committed to before any was told."""

from collections.abc import Callable
from typing import Any

import pytest

from agnosticfl.secagg import draw
from agnosticfl.secagg.derivation import signed_keys, signed_survivors
from agnosticfl.secagg.graph import PRIVACY
from agnosticfl.secagg.messages import Confirmed, Keys, Peers, Refused, Setup, pack, parse
from agnosticfl.secagg.primitives import CryptoError, check_signature
from tests.secagg.federation import Play, federation, signed

CLIENTS = 36  # the fewest of which not all are neighbours, and two
ME = 0


def drawn() -> Play:
    """A round in which all have told their numbers."""
    play = Play(federation(CLIENTS))
    play.stage()
    return play


def test_the_bits_of_the_plan_pay_for_all_rings_a_server_can_choose_from():
    assert draw.TRIES == 6196
    assert 2 ** (PRIVACY - 40) >= draw.TRIES


def test_two_rounds_that_the_server_makes_alike_have_different_rings():
    rings = [drawn().server.ring for _ in range(2)]
    assert rings[0] != rings[1]


def test_numbers_that_are_lost_change_the_ring_and_too_many_end_the_round():
    play = Play(federation(CLIENTS))
    committee = draw.committee(play.server.round, range(CLIENTS))
    assert len(committee) == draw.MEMBERS
    assert committee != draw.committee(b"n" * 32, range(CLIENTS))
    play.stage(dict.fromkeys(committee[:4], "keys"))
    assert len(parse(play.server.requests[committee[5]], Peers).drawn) == 16
    play = Play(federation(CLIENTS))
    committee = draw.committee(play.server.round, range(CLIENTS))
    with pytest.raises(Refused, match="15 of 20 numbers of the draw are there, and 16 must"):
        play.stage(dict.fromkeys(committee[:5], "keys"))


@pytest.mark.attack(
    "the server chooses the ring",
    "clients commit to numbers first",
)
def test_a_client_takes_part_only_if_its_own_commitment_is_there():
    play = Play(federation(CLIENTS))
    setup = parse(play.server.requests[ME], Setup)
    for draws, why in (
        ({**setup.draws, ME: b"c" * 32}, "client 0 drew another number than it had committed to"),
        ({c: d for c, d in setup.draws.items() if c != 5}, "the draw is not of all"),
        ({}, "the draw is not of all"),
    ):
        with pytest.raises(Refused, match=why):
            play.answer(ME, signed(setup._replace(draws=draws)))
    play.answer(ME, pack(setup))
    with pytest.raises(Refused, match="Setup came while waiting for Peers"):
        play.answer(ME, pack(setup))  # its number is told once


def test_a_client_that_did_not_draw_is_in_no_ring():
    play = Play(federation(CLIENTS))
    setup = parse(play.server.requests[ME], Setup)
    stranger = Play(federation(CLIENTS))
    with pytest.raises(Refused, match="client 0 drew another number"):
        stranger.answer(ME, pack(setup))


def with_drawn(play: Play, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    peers = parse(play.server.requests[ME], Peers)
    return pack(peers._replace(drawn=change(list(peers.drawn))))


def another(play: Play, **fields: Any) -> Callable[[list[bytes]], list[bytes]]:
    """One who works for the server tells another number, when it has seen all others."""

    def change(entries: list[bytes]) -> list[bytes]:
        keys = parse(entries[0], Keys)._replace(**fields)
        signing = play.members[keys.sender].signing_key
        return [pack(keys._replace(signature=signing.sign(signed_keys(keys)))), *entries[1:]]

    return change


@pytest.mark.attack(
    "the server makes numbers of the draw up",
    "signed numbers, checked against commitments",
)
def test_numbers_that_were_not_committed_to_make_no_ring():
    play = drawn()
    outsider = next(
        c for c in range(CLIENTS) if c not in draw.committee(play.server.round, range(CLIENTS))
    )
    changes: list[tuple[Callable[[list[bytes]], list[bytes]], str]] = [
        (another(play, draw=b"d" * 32), "drew another number than it had committed to"),
        (another(play, sender=outsider), f"client {outsider} is not of the draw"),
        (lambda e: [*e, e[0]], "is listed twice"),
        (lambda e: e[:15], "15 of 20 numbers of the draw are there, and 16 must"),
        (lambda e: [pack(parse(e[0], Keys)._replace(draw=b"d" * 32)), *e[1:]], "the signature"),
    ]
    for change, why in changes:
        with pytest.raises(Refused, match=why):
            play.answer(ME, with_drawn(play, change))


def test_a_reply_with_another_number_drops_its_sender():
    play = Play(federation(CLIENTS))

    def lies(place: int, reply: bytes) -> bytes:
        keys = parse(reply, Keys)._replace(draw=b"d" * 32)
        signature = play.members[place].signing_key.sign(signed_keys(keys))
        return pack(keys._replace(signature=signature)) if place == 7 else reply

    play.stage(change=lies)
    assert "drew another number than it had committed to" in play.server.dropped[7]


def test_who_was_shown_another_ring_signs_another_list():
    """The server leaves a number out for some clients, which it may; they have no common list."""
    play = drawn()
    told = [parse(entry, Keys) for entry in parse(play.server.requests[ME], Peers).drawn]
    round, everyone = play.server.round, range(CLIENTS)
    rings = [draw.ring_of(round, {k.sender: k for k in numbers}) for numbers in (told, told[1:])]
    assert rings[0] == play.server.ring
    play.until("survivors").stage()
    name = play.server.sum
    assert len({signed_survivors(name, ring, everyone) for ring in rings}) == 2
    (reply, *_) = play.replies["survivors"].values()
    key, signature = play.members[ME].agreement.roster[ME], parse(reply, Confirmed).signature
    check_signature(key, signature, signed_survivors(name, rings[0], everyone))
    with pytest.raises(CryptoError):
        check_signature(key, signature, signed_survivors(name, rings[1], everyone))
