# SPDX-License-Identifier: Apache-2.0
"""Servers with other code than ours in secure rounds: what clients refuse."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

import agnosticfl.deploy.flower.client_app as client_module
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.federation import NoProgress
from agnosticfl.deploy.flower.records import ARRAYS, REQUEST, ROUND, SECURE
from agnosticfl.deploy.keys import read_signing_key
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.memory import load
from agnosticfl.secagg.messages import Unmask, kind_of, pack, parse
from tests.deploy.clients import numpy_client
from tests.deploy.fake import Fault
from tests.deploy.federations import (
    NODES,
    assert_close,
)
from tests.deploy.secure import play, secure_toy


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def test_no_client_opens_two_sums_of_a_round_even_for_a_server_that_lost_its_memory(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    """A server that died after the sum was open has it still; one that lost it gets no other."""
    play(tmp_path, keys)
    shutil.rmtree(tmp_path / "run")
    again = play(tmp_path, keys)
    assert again.sent == []
    assert_close(read_records(tmp_path / "run"), simulated(NODES, 1))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run.sum").unlink()
    # Not with another cohort either: the difference would be the vector of client 3.
    absent: dict[int, Fault] = {3: lambda _: None}
    with pytest.raises(NoProgress):
        play(tmp_path, keys, faults=absent, attempts=1)
    assert caplog.text.count("helped to open the sum of round 1 already") >= 3


def test_a_client_insists_on_its_own_number_of_dishonest_ones(
    tmp_path: Path, keys: Path, simulated: Any, caplog: pytest.LogCaptureFixture
):
    """Of four clients a round bears one; who reckons with two does not take part."""
    play(tmp_path, keys, node_config=lambda place: {"dishonest": 2} if place == 3 else {})
    assert "threshold=3) does not bear 2 dishonest of 4 clients" in caplog.text
    assert_close(read_records(tmp_path / "run"), simulated(3, 1))


def test_a_server_that_asks_for_both_shares_is_refused_by_every_client(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    def both(message: Message) -> None:
        record = message.content.config_records.get(SECURE, ConfigRecord())
        asked: Any = record.get(REQUEST, b"")
        if asked and kind_of(asked) == "Unmask":
            unmask = parse(asked, Unmask)
            record[REQUEST] = pack(unmask._replace(dead=unmask.alive))

    with pytest.raises(NoProgress):
        play(tmp_path, keys, tamper=both, attempts=1)
    refusals = re.findall(r"failed: refused: client \d is listed both alive and dead", caplog.text)
    assert len(refusals) == NODES


@pytest.mark.attack(
    "the server asks to unmask twice, after a restart",
    "a client's memory is on its disc before it answers",
)
def test_a_second_request_to_unmask_is_refused_after_a_restart_too(tmp_path: Path, keys: Path):
    """The client's process is another one for every message, and it still remembers."""
    grid = play(tmp_path, keys)
    (unmask,) = [
        m
        for m in grid.sent
        if m.metadata.dst_node_id == grid.nodes[0]
        and SECURE in m.content
        and kind_of(m.content.config_records[SECURE][REQUEST]) == "Unmask"  # type: ignore[arg-type]
    ]
    (number,) = grid.push_messages([unmask])
    (reply,) = grid.pull_messages([number])
    assert reply.has_error()
    assert "has answered all of round" in (reply.error.reason or "")


@pytest.mark.attack(
    "the server asks for a vector in the clear",
    "a client with a roster answers in secure rounds only",
)
def test_a_secure_client_never_answers_in_the_clear(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    def in_the_clear(message: Message) -> None:
        if message.metadata.message_type == "train":
            del message.content[SECURE]

    with pytest.raises(NoProgress):
        play(tmp_path, keys, tamper=in_the_clear, attempts=1)
    assert caplog.text.count("failed: refused: this node takes part in secure rounds only") == NODES


@pytest.mark.attack(
    "the server searches all it gets for secrets",
    "masks, boxes, commitments",
)
def test_no_byte_that_the_server_gets_tells_a_secret_of_a_client(tmp_path: Path, keys: Path):
    """Private keys, seeds, the vector before it is masked, examples, and words planted in them."""
    planted = np.float32(123.456)

    def plants(call: Any) -> Any:
        sums = numpy_client(call)
        return sums._replace(weighted_delta=sums.weighted_delta * 0 + planted)

    memories: list[bytes] = []

    def spy(message: Message) -> None:
        del message
        for place in range(NODES):
            memory = tmp_path / f"{place}.memory"
            if memory.exists():
                memories.append(memory.read_bytes())

    grid = play(tmp_path, keys, contribute=plants, tamper=spy)
    parts = [part for memory in memories for part in load(memory).rounds]
    secrets = {p.box_private for p in parts} | {p.mask_seed for p in parts} | {planted.tobytes()}
    secrets |= {read_signing_key(keys / f"{n}.sign").private_bytes_raw() for n in range(NODES)}
    data = build(secure_toy().config).data.train.examples["x"]
    secrets |= {data[i : i + 2].tobytes() for i in range(len(data) - 1)}
    secrets.discard(b"")
    received = b"".join(_bytes_of(message) for message in grid.received)
    assert len(secrets) > 100
    assert len(received) > 5000
    assert not [secret for secret in secrets if secret in received]


def _bytes_of(message: Message) -> bytes:
    """Everything of a message that reaches the server."""
    if message.has_error():
        return (message.error.reason or "").encode()
    parts = [repr(message.metadata).encode(), repr(message.content).encode()]
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            parts += [value for value in record.values() if isinstance(value, bytes)]
        else:
            parts += [array.data for array in record.values()]  # type: ignore[union-attr]
    return b"".join(parts)


LAST = 2**63 + 2 * NODES - 1  # the node that is client 3


def alpha_for(change: Callable[[np.ndarray], np.ndarray], node: int | None = None):
    """A server that sends all, or one of the nodes, another α."""

    def tamper(message: Message) -> None:
        arrays = message.content.array_records.get(ARRAYS)
        if arrays is not None and node in (None, message.metadata.dst_node_id):
            other = Array(change(arrays["alpha"].numpy()))
            message.content[ARRAYS] = ArrayRecord({**arrays, "alpha": other})

    return tamper


@pytest.mark.attack(
    "the bytes of α in another order for one client", "type and byte order are in the digest"
)
@pytest.mark.parametrize("change", [lambda a: a.astype(">f4"), lambda a: a.view(">f4")])
def test_an_alpha_in_another_byte_order_is_something_else(
    tmp_path: Path,
    keys: Path,
    simulated: Any,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[np.ndarray], np.ndarray],
):
    """The victim would add its update to zeros: to the others, α is nothing."""
    play(tmp_path, keys, tamper=alpha_for(change, LAST), minimum=3)
    assert "client 3 is dropped: masked vectors" in caplog.text
    assert_close(read_records(tmp_path / "run"), simulated(3, 1))


@pytest.mark.attack("one client is told another round", "the round is in the digest, and checked")
def test_a_message_that_says_another_round_is_refused(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    def tamper(message: Message) -> None:
        record = message.content.config_records.get(ROUND)
        if record is not None and message.metadata.dst_node_id == LAST:
            message.content[ROUND] = ConfigRecord({**record, "round": 7})

    play(tmp_path, keys, tamper=tamper, minimum=3)
    assert "is not what the others were given" in caplog.text


@pytest.mark.attack(
    "more clients in a sum than its numbers have room for", "server and clients count them"
)
def test_a_sum_without_room_for_all_that_are_asked_is_refused(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The words of six clients could overflow where there is room for those of four."""
    why = "over-selection 1.5 asks 6 clients, and the numbers of a sum have room for 4"
    with pytest.raises(BadInput, match=why):
        play(tmp_path, keys, over_selection=1.5)
    monkeypatch.setattr(client_module, "most_clients", lambda _: NODES - 1)
    with pytest.raises(NoProgress):
        play(tmp_path, keys, attempts=1)
    assert (
        caplog.text.count("failed: refused: a sum of 4 clients; its numbers have room for 3") == 4
    )
