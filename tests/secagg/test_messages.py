# SPDX-License-Identifier: Apache-2.0
"""Any bytes at all: the answer is a message or a refusal, never another exception."""

import contextlib
import functools
import tracemalloc
from typing import cast

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.secagg import member as client
from agnosticfl.secagg import messages
from agnosticfl.secagg.messages import (
    FORMS,
    VERSION,
    Confirmed,
    Keys,
    Masked,
    Refused,
    Setup,
    pack,
    parse,
)
from tests.secagg.federation import LENGTH, NOW, STAGES, Play, federation

KINDS = {name: getattr(messages, name) for name in FORMS}


def packed(value: object) -> bytes:
    return cast("bytes", msgpack.packb(value))


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=70)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@functools.cache
def whole_round() -> dict[str, tuple[bytes, bytes]]:
    """Client 0's request and reply in each stage."""
    play = Play(federation(5))
    seen: dict[str, tuple[bytes, bytes]] = {}
    while play.server.requests:
        stage, request = play.server.stage, play.server.requests[0]
        play.stage()
        seen[stage] = (request, play.replies[stage][0])
    return seen


def test_every_message_survives_its_bytes():
    for request, reply in whole_round().values():
        for data in (request, reply):
            message = parse(data, KINDS[messages.kind_of(data)])
            assert pack(message) == data


@given(st.binary(max_size=300) | json_like.map(packed))
@settings(max_examples=100)
def test_any_bytes_are_refused(data: bytes):
    for kind in KINDS.values():
        with pytest.raises(Refused):
            parse(data, kind)


@given(st.data())
@settings(max_examples=150)
def test_a_message_with_other_fields_is_refused_or_of_the_right_types(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(KINDS)))
    fields = data.draw(st.lists(json_like, min_size=(n := len(FORMS[name].readers)), max_size=n))
    with contextlib.suppress(Refused):
        message = parse(packed([VERSION, name, *fields]), KINDS[name])
        assert pack(message) == packed([VERSION, name, *fields])


@pytest.mark.attack(
    "any bytes at all",
    "strict parsers, fuzzed",
)
@pytest.mark.parametrize("stage", STAGES)
@given(st.data())
@settings(max_examples=30)
def test_changed_bytes_never_crash_client_or_server(stage: str, data: st.DataObject):
    changed = data.draw(st.sampled_from([0, 1]))
    original = whole_round()[stage][changed]
    place = data.draw(st.integers(0, len(original) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "double"]))
    bytes_ = {
        "flip": original[:place]
        + bytes([original[place] ^ 1 << place % 8])
        + original[place + 1 :],
        "cut": original[:place],
        "double": original[:place] + original,
    }[kind]
    play = Play(federation(5))
    for name in STAGES[: STAGES.index(stage)]:
        assert play.server.stage == name
        play.stage()
    with contextlib.suppress(Refused):
        client.answer(
            play.members[0], play.states[0], bytes_, NOW, lambda *_: client.Work(play.vectors[0])
        )
    play.server.receive(0, bytes_)
    play.stage({0: stage})  # the others are enough


REFUSED = [
    (Keys, [VERSION, "Keys"], "Keys has 0 fields"),
    (Keys, [1, "Keys", *[b""] * 7], "its version is 1, not 4"),
    (Keys, [VERSION, "Masked", b"r" * 32, 0, b"1234"], "it is Masked, where Keys was expected"),
    (Keys, [VERSION, "Keys", b"r" * 31, 0, *[b""] * 5], "Keys.round is not 32 to 32 bytes"),
    (
        Confirmed,
        [VERSION, "Confirmed", b"r" * 32, True, b"s" * 64],
        "sender is not a whole number from 0",
    ),
    (
        Confirmed,
        [VERSION, "Confirmed", b"r" * 32, -1, b"s" * 64],
        "sender is not a whole number from 0",
    ),
    (Masked, [VERSION, "Masked", b"r" * 32, 0, b""], "vector is not 1 to"),
    (
        Setup,
        [VERSION, "Setup", b"r", 1, b"r" * 32, [2, 1], 2, 2, [], b"s" * 64],
        "cohort is not in rising order",
    ),
    (
        Setup,
        [VERSION, "Setup", b"r", 1, b"r" * 32, [1, 1], 2, 2, [], b"s" * 64],
        "cohort is not in rising order",
    ),
    (Setup, {"a": 1}, "it is not msgpack as it is used here"),
    (Setup, 7, "it is not a list"),
    (Setup, [], "it is too short"),
]


@pytest.mark.parametrize(("kind", "value", "problem"), REFUSED)
def test_a_refusal_says_what_is_wrong(kind: type, value: object, problem: str):
    with pytest.raises(Refused, match=r"^bad message: ") as error:
        parse(packed(value), kind)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def nested(depth: int) -> bytes:
    """A list in a list in a list …, as msgpack writes it."""
    return b"\x91" * depth + b"\xc0"


@pytest.mark.attack(
    "nested lists",
    "nothing is read that a kind of message cannot have",
)
@pytest.mark.parametrize(
    "field",
    [nested(300), nested(1000), nested(100_000), b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff"],
)
def test_lists_in_lists_are_refused(field: bytes):
    for kind in KINDS.values():
        head = b"\x93" + packed(VERSION) + packed(kind.__name__)
        for data in (field, head + field, b"\x93" + field, b"\x93" + packed(VERSION) + field):
            with pytest.raises(Refused):
                parse(data, kind)
            with contextlib.suppress(Refused):
                messages.kind_of(data)


@pytest.mark.attack(
    "ten megabytes that become hundreds",
    "a limit for each kind of message",
)
@pytest.mark.parametrize("item", [b"\xc0", b"\x90", b"\x01", b"\x80", b"\xa0", b"\xc4\x00"])
def test_many_bytes_do_not_become_many_more(item: bytes):
    """Ten megabytes of small things would be hundreds of megabytes of Python objects."""
    number = 10_000_000 // len(item)
    field = b"\xdd" + number.to_bytes(4, "big") + item * number
    data = b"\x95" + packed(VERSION) + packed("Shares") + packed(b"r" * 32) + packed(0) + field
    play = Play(federation(5)).until("shares")
    tracemalloc.start()
    play.server.receive(0, data)
    for kind in KINDS.values():
        with contextlib.suppress(Refused):
            parse(data, kind, clients=1000, vector=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "bytes, where Shares has at most" in play.server.dropped[0]
    assert peak < 1_000_000


@pytest.mark.parametrize("clients", [5, 60])
def test_no_honest_message_is_too_long(clients: int):
    """With the least that its reader lets it have."""
    play = Play(federation(clients), length=LENGTH)
    while play.server.requests:
        stage = play.server.stage
        play.stage({1: "masked vectors"} if clients > 5 else {})
        for data in (*play.requests[stage].values(), *play.replies[stage].values()):
            parse(data, KINDS[messages.kind_of(data)], clients, 4 * LENGTH)
