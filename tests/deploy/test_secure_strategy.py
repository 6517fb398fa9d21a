# SPDX-License-Identifier: Apache-2.0
"""Secure rounds over a grid of clients in this process: the real protocol, every step of it."""

import math
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

import agnosticfl.deploy.flower.client_app as client_module
from agnosticfl.deploy.agree import agreement_of
from agnosticfl.deploy.cards import read_card, signed_card
from agnosticfl.deploy.client_keys import make_client_keys
from agnosticfl.deploy.flower import federation, secure_answers
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.federation import NoProgress
from agnosticfl.deploy.flower.records import ARRAYS, REQUEST, ROUND, SECURE, to_record
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.flower.server_app import first_params, server_data
from agnosticfl.deploy.keys import make_signing_key, read_signing_key
from agnosticfl.deploy.node.contribute import Contribute
from agnosticfl.deploy.roster import first_roster, next_roster, read_roster, write_roster
from agnosticfl.deploy.task import FederatedTask, write_task
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.member import State, load
from agnosticfl.secagg.messages import Masked, Shares, Unmask, kind_of, pack, parse
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid, Fault
from tests.deploy.federations import (
    NODES,
    POLICY,
    SERVER,
    assert_close,
    make_federation,
    simulate,
    toy,
)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signing key for every node, and one that nobody registered."""
    folder = tmp_path_factory.mktemp("keys")
    make_federation(folder, [str(node) for node in range(NODES)])
    make_client_keys(folder / "stranger.key", list(toy().domains), "nobody")
    return folder


def secure_toy(rounds: int = 2, **more: Any) -> FederatedTask:
    task = toy(rounds)
    secure = msgspec.structs.replace(task.config, secure={"name": "simulate"}, **more)
    return task._replace(config=secure)


def play(
    folder: Path,
    keys: Path,
    rounds: int = 1,
    faults: dict[int, Fault] | None = None,
    contribute: Contribute = numpy_client,
    node_config: Callable[[int], dict[str, Any]] = lambda _: {},
    tamper: Callable[[Message], None] = lambda _: None,
    compress: dict[str, Any] | None = None,
    **policy: Any,
) -> FakeGrid:
    task = secure_toy(rounds, compress=compress)
    folder.mkdir(exist_ok=True)
    write_task(folder, task)

    def settings(place: int) -> dict[str, Any]:
        own = {"roster": keys / "roster", "signing-key": keys / f"{place}.sign"}
        own["memory"] = folder / f"{place}.memory"
        return {**{name: str(path) for name, path in own.items()}, **node_config(place)}

    roster = read_roster(keys / "roster")
    grid = FakeGrid([client_app(folder, contribute)] * NODES, faults, settings, tamper)
    strategy = SecureStrategy(
        task.config,
        folder / "run",
        POLICY._replace(**{"minimum": 3, "attempts": 2, "step": 0.2, **policy}),
        server_data(task, {"data": ""}),
        agreement_of(task, roster, 3, 1),
        SERVER,
    )
    first = to_record(first_params(task, build(task.config).model))
    strategy.start(grid, first, rounds, POLICY.deadline)
    return grid


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Number of clients -> records of the simulation of two rounds with the first of them."""
    done: dict[int, list[dict[str, Any]]] = {}

    def get(clients: int, rounds: int = 2) -> list[dict[str, Any]]:
        if clients not in done:
            folder = tmp_path_factory.mktemp("simulated") / "run"
            done[clients] = simulate(folder, toy(2).config, clients)
        return done[clients][:rounds]

    return get


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


def silent_at(kind: str) -> Fault:
    def fault(reply: Message) -> Message | None:
        record = reply.content.config_records.get(SECURE, ConfigRecord())
        answer: Any = record.get(REQUEST)
        return None if answer is not None and kind_of(answer) == kind else reply

    return fault


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


def silent_twice(kind: str) -> Fault:
    """Two replies of that kind are lost."""
    lost: list[Message] = []

    def fault(reply: Message) -> Message | None:
        if silent_at(kind)(reply) is None and len(lost) < 2:
            lost.append(reply)
            return None
        return reply

    return fault


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
    assert left[0].mask_seed
    assert left[1] == State("Setup", left[0].number)


def asked(message: Message) -> str:
    record = message.content.config_records.get(SECURE, ConfigRecord())
    request: Any = record.get(REQUEST)
    return kind_of(request) if request else ""


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
    states = [load(memory) for memory in memories]
    secrets = {s.box_private for s in states} | {s.mask_seed for s in states} | {planted.tobytes()}
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
    "nonsense in the place of a message, in every attempt", "the sender is named and left out"
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
        lying = state._replace(own_seed=bytes(16), mask_seed=bytes(16))
        after, reply = theirs(member, lying, request, *more)
        return after._replace(own_seed=state.own_seed, mask_seed=state.mask_seed), reply

    monkeypatch.setattr(secure_answers.protocol, "answer", deals_other_secrets)
    play(tmp_path, keys, rounds=8, faults={3: silent_at("Revealed")}, minimum=3)
    taken = [record["step_taken"] for record in read_records(tmp_path / "run")]
    assert not taken[0]
    assert all(taken[5:])


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
