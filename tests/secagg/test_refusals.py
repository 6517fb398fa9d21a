# SPDX-License-Identifier: Apache-2.0
"""What a client refuses, whatever the server says: each in one clear line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agnosticfl.secagg import member as client
from agnosticfl.secagg import primitives
from agnosticfl.secagg.derivation import signed_keys
from agnosticfl.secagg.messages import (
    Boxes,
    Complaint,
    Confirmed,
    Keys,
    Masked,
    Peers,
    Refused,
    Setup,
    Sum,
    Survivors,
    Unmask,
    pack,
    parse,
)
from tests.secagg.federation import NOW, ROUNDS, Play, asking, federation, signed

ME = 0


def changed(request: bytes, kind: type, **fields: Any) -> bytes:
    return pack(parse(request, kind)._replace(**fields))


def refused(play: Play, request: bytes, why: str) -> None:
    """The client refuses in one line, and still answers the honest request after."""
    honest = play.server.requests.get(ME)
    before = play.states[ME]
    with pytest.raises(Refused) as error:
        play.answer(ME, request)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert play.states[ME] == before
    if honest is not None:
        play.answer(ME, honest)


def setup(play: Play, **fields: Any) -> bytes:
    """Another set-up, with the server's signature."""
    return signed(parse(play.server.requests[ME], Setup)._replace(**fields))


SETUPS: list[tuple[dict[str, Any], str]] = [
    ({"run": b"another"}, "the round is of another run"),
    ({"agreed": b"r" * 32}, "the server's roster or terms are not those here"),
    ({"number": 2}, "this client did not join round 2"),
    (
        {"threshold": 2},
        "GraphPlan(neighbours=4, threshold=2) does not bear 1 dishonest of 5 clients",
    ),
    (
        {"threshold": 3},  # a bare majority, which the server and one client get round
        "GraphPlan(neighbours=4, threshold=3) does not bear 1 dishonest of 5 clients",
    ),
    (
        {"neighbours": 2},
        "GraphPlan(neighbours=2, threshold=4) does not bear 1 dishonest of 5 clients",
    ),
    ({"cohort": (0, 1)}, "the cohort has 2 clients, fewer than 3"),
    ({"cohort": (1, 2, 3)}, "this client is not in the cohort"),
    ({"cohort": (0, 1, 2, 3, 4, 5)}, "the cohort holds clients that are not registered"),
    ({"cohort": ()}, "this client is not in the cohort"),
]


@pytest.mark.parametrize(("fields", "why"), SETUPS)
def test_setups(fields: dict[str, Any], why: str):
    play = Play(federation(5))
    refused(play, setup(play, **fields), why)


@pytest.mark.attack(
    "one client is sent something else to work on",
    "the digest of what is sent is in the sum's name",
)
def test_a_client_that_was_given_something_else_refuses():
    """A server that sends all others a model at which they add nothing would read its vector."""
    play = Play(federation(5), sent=b"w and alpha")
    for _ in range(2):
        play.stage()
    request, own = play.server.requests[ME], (play.members[ME], play.states[ME])
    with pytest.raises(Refused, match="not what the others were given"):
        client.answer(*own, request, NOW, lambda *_: client.Work(play.vectors[ME]), b"w")
    client.answer(*own, request, NOW, lambda *_: client.Work(play.vectors[ME]), b"w and alpha")


def test_a_sum_of_something_else_is_another_sum():
    """A server that asks a client alone for another sum finds only masks that nothing cancels."""
    play = Play(federation(5), sent=b"w and alpha").until("masked vectors")
    other = asking(play.server.requests[ME], sent=b"w")
    own = (play.members[ME], play.states[ME])
    state, reply = client.answer(*own, other, NOW, lambda *_: client.Work(play.vectors[ME]), b"w")
    play.states[ME] = state
    play.server.receive(ME, changed(reply, Masked, sum=play.server.sum))  # taken all the same
    play.stage({ME: "masked vectors"})
    play.to_the_end()  # it does not help, and the others are enough
    assert "Survivors is of another sum" in play.refusals[ME]
    assert play.server.survivors == list(range(5))
    of_others = play.sum_of(range(1, 5))
    assert not np.array_equal(play.server.total - of_others, play.vectors[ME])


def test_a_round_that_was_begun_before():
    members = federation(5)
    play = Play(members, number=7).to_the_end()
    for number in (6, 7):
        with pytest.raises(Refused, match=f"round {number} is not after round 7"):
            Play(members, number=number, states=play.states)


SUMS: list[tuple[dict[str, Any], str]] = [
    ({"t": ROUNDS + 1}, "round 1001 of the algorithm, which has 1000"),
    ({"short": 6, "bits": 8}, "6 of 5 numbers are short"),
    ({"round": b"r" * 32}, "Sum is of another round"),
    ({"sent": b"w"}, "what this client was given to work on is not what the others were given"),
]


@pytest.mark.parametrize(("fields", "why"), SUMS)
def test_sums(fields: dict[str, Any], why: str):
    play = Play(federation(5)).until("masked vectors")
    refused(play, asking(play.server.requests[ME], **fields), why)


def test_a_sum_that_the_server_did_not_sign():
    play = Play(federation(5)).until("masked vectors")
    boxes = parse(play.server.requests[ME], Boxes)
    other = pack(parse(boxes.sum, Sum)._replace(t=7))
    refused(play, pack(boxes._replace(sum=other)), "Sum of the server: the signature is not that")


def forged(request: bytes, change: Callable[[Keys], Keys]) -> bytes:
    """The request for shares with the keys of the first neighbour changed."""
    first, *others = parse(request, Peers).keys
    return changed(request, Peers, keys=(pack(change(parse(first, Keys))), *others))


def test_keys():
    members = federation(5)
    play = Play(members).until("shares")
    request = play.server.requests[ME]
    own_key = primitives.public_key(b"s" * 32)
    swapped = forged(request, lambda keys: keys._replace(mask_key=own_key))
    refused(play, swapped, "keys of client 1: the signature is not that of the key in the roster")

    def resigned(keys: Keys) -> Keys:
        stranger = primitives.signing_key()
        return keys._replace(signature=stranger.sign(signed_keys(keys)))

    play = Play(members).until("shares")
    request = play.server.requests[ME]
    invented = forged(request, resigned)
    refused(play, invented, "keys of client 1: the signature is not that of the key in the roster")


def test_keys_of_strangers_and_of_other_rounds():
    members = federation(5)
    earlier = Play(members).until("shares")
    for change, why in [
        (lambda keys: keys._replace(sender=9), "client 9 is not a neighbour"),
        (lambda _: parse(earlier.replies["keys"][1], Keys), "Keys is of another round"),
    ]:
        play = Play(members, number=2).until("shares")
        refused(play, forged(play.server.requests[ME], change), why)


def test_neighbours_twice_or_too_few():
    play = Play(federation(5)).until("shares")
    request = play.server.requests[ME]
    keys = parse(request, Peers).keys
    refused(play, changed(request, Peers, keys=[*keys, keys[0]]), "client 1 is listed twice")
    play = Play(federation(5)).until("shares")
    few = changed(
        play.server.requests[ME], Peers, keys=parse(play.server.requests[ME], Peers).keys[:1]
    )
    refused(play, few, "too few peers: 2 of 5 sent keys, and 4 must")


def test_boxes():
    play = Play(federation(5)).until("masked vectors")
    request = play.server.requests[ME]
    boxes = dict(parse(request, Boxes).boxes)
    few = {1: dict(parse(play.server.requests[ME], Boxes).boxes)[1]}
    refused(
        play,
        changed(play.server.requests[ME], Boxes, boxes=few),
        "too few peers: 2 of 5 sent shares, and 4 must",
    )
    play = Play(federation(5)).until("masked vectors")
    request = changed(play.server.requests[ME], Boxes, boxes={9: boxes[1]})
    refused(play, request, "a box of client 9, who sent no keys")


def complains(play: Play, request: bytes, accused: list[int]) -> None:
    """The client leaves the round, forgets its secrets and says whose boxes do not open."""
    complaint = parse(play.answer(ME, request), Complaint)
    assert list(complaint.accused) == accused
    assert not play.states[ME].rounds


def test_boxes_that_are_not_for_it():
    play = Play(federation(5)).until("masked vectors")
    boxes = dict(parse(play.server.requests[ME], Boxes).boxes)
    swapped = {**boxes, 1: boxes[2], 2: boxes[1]}
    complains(play, changed(play.server.requests[ME], Boxes, boxes=swapped), [1, 2])


def test_a_box_of_another_round_or_for_another_client():
    members = federation(5)
    earlier = Play(members).until("masked vectors")
    old = parse(earlier.server.requests[ME], Boxes).boxes[1]
    for box_of in (lambda _: old, lambda play: parse(play.server.requests[2], Boxes).boxes[1]):
        play = Play(members, number=2).until("masked vectors")
        request = play.server.requests[ME]
        boxes = {**parse(request, Boxes).boxes, 1: box_of(play)}
        complains(play, changed(request, Boxes, boxes=boxes), [1])


def test_no_vector_or_one_of_another_shape():
    play = Play(federation(5)).until("masked vectors")
    request = play.server.requests[ME]
    with pytest.raises(Refused, match="no vector to send"):
        client.answer(play.members[ME], play.states[ME], request, NOW)
    short, own = play.vectors[ME][:4], (play.members[ME], play.states[ME])
    with pytest.raises(Refused, match=r"shape \(4,\); the sum is of 5 numbers"):
        client.answer(*own, request, NOW, lambda *_: client.Work(short))


SURVIVORS: list[tuple[tuple[int, ...], str]] = [
    ((0, 1, 2, 9), "a survivor is not in the cohort"),
    ((1, 2, 3), "this client sent its vector and is not among the survivors"),
    ((0, 1), "there are 2 survivors, fewer than 3"),
    ((0, 1, 2, 4), "survivor 4 sent this client no shares"),
]


@pytest.mark.parametrize(("alive", "why"), SURVIVORS)
def test_survivors(alive: tuple[int, ...], why: str):
    play = Play(federation(5))
    while play.server.stage != "survivors":
        play.stage({4: "shares"})
    refused(play, changed(play.server.requests[ME], Survivors, alive=alive), why)


def test_too_few_survivors_among_the_holders():
    members = federation(7, fewest=2)
    play = Play(members).until("survivors")
    few = changed(play.server.requests[ME], Survivors, alive=(0, 1, 2))
    refused(play, few, "too few peers: 3 of 7 survived, and 5 must")


def unmask_request() -> Play:
    play = Play(federation(6))
    while play.server.stage != "unmasking":
        play.stage({5: "masked vectors"})
    return play


UNMASK: list[tuple[dict[str, Any], str]] = [
    ({"alive": (1, 2, 3, 4), "dead": (4, 5)}, "client 4 is listed both alive and dead"),
    ({"alive": (1, 2, 3), "dead": (4, 5)}, "client 4 is not what the survivors' list said"),
    ({"alive": (1, 2, 3, 4, 5), "dead": ()}, "client 5 is not what the survivors' list said"),
    ({"dead": ()}, "the dead are not the neighbours that did not survive"),
    ({"dead": (5, 9)}, "the dead are not the neighbours that did not survive"),
    ({"signatures": {}}, "too few peers: 1 of 6 signed the list of survivors, and 5 must"),
    ({"signatures": {5: b"s" * 64}}, "a signature is not of a survivor"),
    (
        {"signatures": dict.fromkeys(range(1, 5), b"s" * 64)},
        "list of survivors of client 1: the sig",
    ),
    ({"sum": b"r" * 32}, "Unmask is of another sum"),
]


@pytest.mark.parametrize(("fields", "why"), UNMASK)
def test_unmask_requests(fields: dict[str, Any], why: str):
    play = unmask_request()
    refused(play, changed(play.server.requests[ME], Unmask, **fields), why)


def test_a_second_unmask_request():
    play = unmask_request()
    request = play.server.requests[ME]
    play.answer(ME, request)
    play.server.requests = {}
    refused(play, request, "Unmask came, but this client has answered all of round 1")


def test_two_lists_of_survivors_open_nothing():
    """The server tells clients 0 and 1 that 5 is dead, and others that 2 is."""
    members = federation(6)
    play = Play(members).until("survivors")
    lists = {c: (0, 1, 2, 3, 4) if c < 3 else (0, 1, 3, 4, 5) for c in (0, 1, 2, 3, 4)}
    request = play.server.requests[ME]
    play.server.requests = {
        c: changed(request, Survivors, alive=alive) for c, alive in lists.items()
    }
    signatures = {c: play.answer(c, r) for c, r in play.server.requests.items()}
    unmask = Unmask(
        parse(request, Survivors).sum,
        alive=(1, 2, 3, 4),
        dead=(5,),
        signatures={c: parse(signatures[c], Confirmed).signature for c in (1, 2, 3, 4)},
    )
    play.server.requests = {}
    refused(
        play, pack(unmask), "list of survivors of client 3: the signature is not that of the key"
    )


@pytest.mark.parametrize("stage", ["keys", "shares", "masked vectors", "survivors"])
def test_requests_out_of_order(stage: str):
    whole = Play(federation(5))
    requests: list[bytes] = []
    while whole.server.requests:
        requests.append(whole.server.requests[ME])
        whole.stage()
    play = Play(federation(5)).until(stage)
    place = ["keys", "shares", "masked vectors", "survivors"].index(stage)
    for number, request in enumerate(requests):
        if number not in (0, place):
            with pytest.raises(Refused, match="came"):
                play.answer(ME, request)


def test_a_client_goes_on_to_the_next_round_after_one_that_was_abandoned():
    members = federation(5)
    play = Play(members).until("survivors")
    later = Play(members, number=2, states=play.states)
    later.to_the_end()
    np.testing.assert_array_equal(later.server.total, later.sum_of(range(5)))
