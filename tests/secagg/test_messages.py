# SPDX-License-Identifier: Apache-2.0
"""Any bytes at all: the answer is a message or a refusal, never another exception."""

import contextlib
import functools
from typing import cast

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.secagg import member as client
from agnosticfl.secagg import messages
from agnosticfl.secagg.messages import (
    READERS,
    VERSION,
    Confirmed,
    Keys,
    Masked,
    Refused,
    Setup,
    pack,
    parse,
)
from tests.secagg.federation import STAGES, Play, federation

KINDS = {name: getattr(messages, name) for name in READERS}


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
    fields = data.draw(
        st.lists(json_like, min_size=len(READERS[name]), max_size=len(READERS[name]))
    )
    with contextlib.suppress(Refused):
        message = parse(packed([VERSION, name, *fields]), KINDS[name])
        assert pack(message) == packed([VERSION, name, *fields])


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
        client.answer(play.members[0], play.states[0], bytes_, lambda: play.vectors[0])
    play.server.receive(0, bytes_)
    play.stage({0: stage})  # the others are enough


REFUSED = [
    (Keys, [VERSION, "Keys"], "Keys has 0 fields"),
    (Keys, [1, "Keys", *[b""] * 7], "its version is 1, not 2"),
    (Keys, [VERSION, "Masked", b"r" * 32, 0, b"1234"], "it is 'Masked', where Keys was expected"),
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
        [VERSION, "Setup", b"r", 1, 1, b"r" * 32, [2, 1], 2, 2, 1, 0, 32, b"", []],
        "cohort is not in rising order",
    ),
    (
        Setup,
        [VERSION, "Setup", b"r", 1, 1, b"r" * 32, [1, 1], 2, 2, 1, 0, 32, b"", []],
        "cohort is not in rising order",
    ),
    (Setup, {"a": 1}, "it is not a list"),
    (Setup, [], "it is too short"),
]


@pytest.mark.parametrize(("kind", "value", "problem"), REFUSED)
def test_a_refusal_says_what_is_wrong(kind: type, value: object, problem: str):
    with pytest.raises(Refused, match=r"^bad message: ") as error:
        parse(packed(value), kind)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
