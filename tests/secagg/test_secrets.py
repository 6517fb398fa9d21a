# SPDX-License-Identifier: Apache-2.0
"""Every byte that the server received in a round, searched for what it must not know."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg.memory import Part, State
from agnosticfl.secagg.messages import Revealed, parse
from tests.secagg.federation import STAGES, Play, federation

MARK = b"a planted secret"  # 16 bytes: four numbers of a vector


def searched(play: Play, upto: str = STAGES[-1]) -> bytes:
    """All that the server received until the end of a stage."""
    stages = STAGES[: STAGES.index(upto) + 1]
    return b"".join(reply for s in stages for reply in play.replies.get(s, {}).values())


def private(play: Play, client: int, part: Part, round: bytes) -> dict[str, bytes]:
    """What must never leave a client that survives."""
    signing = play.members[client].signing_key
    return {
        "signing key": signing.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()),
        "box key": part.box_private,
        "mask seed": part.mask_seed,
        "mask key": keys.private_key(part.mask_seed, round),
        "vector": play.vectors[client].tobytes(),
    }


@pytest.fixture(scope="module")
def played() -> tuple[Play, dict[int, Part]]:
    """One client is lost before it sent its vector and one after; what all knew."""
    play = Play(federation(8), length=64)
    for vector in play.vectors:
        vector[10:14] = np.frombuffer(MARK, "<u4")
    parts: dict[int, Part] = {}
    silent = {4: "masked vectors", 7: "unmasking"}
    while play.server.requests:
        if play.server.stage == "survivors":
            parts = {client: play.part(client) for client in play.states}
        play.stage(silent)
    return play, parts


def test_the_search_finds_what_is_there(played: tuple[Play, dict[int, Part]]):
    play, parts = played
    heard = searched(play)
    assert parts[0].own_seed in heard  # revealed at the end, as it must be
    assert len(heard) > 7 * 4 * 64
    assert MARK in play.vectors[3].tobytes()


def test_nothing_private_reaches_the_server(played: tuple[Play, dict[int, Part]]):
    play, parts = played
    heard = searched(play)
    assert MARK not in heard
    for client, part in parts.items():
        for name, secret in private(play, client, part, play.server.round).items():
            for start in range(0, len(secret) - 15, 4):
                assert secret[start : start + 16] not in heard, (client, name)


def test_seeds_reach_the_server_only_when_they_may(played: tuple[Play, dict[int, Part]]):
    play, parts = played
    before = searched(play, "survivors")
    for part in parts.values():
        assert part.own_seed not in before
    assert parts[4].own_seed not in searched(play)  # lost: its key is opened instead
    for client in range(4):
        assert len(parts[client].shares) == 7
        for holder, pair in parts[client].shares.items():
            assert pair not in searched(play), (client, holder)


def test_no_holder_reveals_both_shares_of_anyone(played: tuple[Play, dict[int, Part]]):
    play, _ = played
    for reply in play.replies["unmasking"].values():
        sent = parse(reply, Revealed)
        assert not set(sent.alive) & set(sent.dead)
        assert set(sent.dead) == {4}


def test_what_is_left_on_a_client_after_the_round(played: tuple[Play, dict[int, Part]]):
    play, _ = played
    assert play.states[0] == State(1, opened={b"a run": 1})


def test_masked_vectors_say_nothing_of_the_vector():
    """The same vector under masks of two rounds: equal numbers are as rare as chance has them."""
    sent = []
    for number in (1, 2):
        play = Play(federation(3), number=number, length=4096)
        play.vectors[:] = 7
        play.until("survivors")
        sent.append(np.frombuffer(play.replies["masked vectors"][0][-4 * 4096 :], "<u4"))
    assert np.count_nonzero(sent[0] == sent[1]) <= 1
    assert abs(float(np.mean(sent[0] / 2**32)) - 0.5) < 5 * (1 / 12 / 4096) ** 0.5
