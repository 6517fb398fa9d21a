# SPDX-License-Identifier: Apache-2.0
"""The server's side over a grid of clients in this process."""

import io
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from agnosticfl.core import tree
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.federation import NoProgress
from agnosticfl.deploy.flower.records import DECLINED, ROUND, SUM, to_arrays, to_record
from agnosticfl.deploy.flower.server_app import first_params, server_data
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.node.contribute import Contribute, jax_client
from agnosticfl.deploy.node.examples import dealt
from agnosticfl.deploy.task import FederatedTask, federated_config, read_task, terms, write_task
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.report import load_runs
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid, Fault
from tests.deploy.federations import NODES, POLICY, assert_same, simulate, toy


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def strategy(task: FederatedTask, folder: Path, **policy: Any) -> AgnosticStrategy:
    held = server_data(task, {"data": ""})
    own = terms(task)
    return AgnosticStrategy(task.config, folder, POLICY._replace(**policy), held, terms=own)


def play(
    folder: Path,
    task: FederatedTask | None = None,
    faults: dict[int, Fault] | None = None,
    contribute: Contribute = numpy_client,
    **policy: Any,
) -> FakeGrid:
    """A run in the folder `run`; the grid it went over."""
    task = task or toy()
    folder.mkdir(exist_ok=True)
    write_task(folder, task)
    grid = FakeGrid([client_app(folder, contribute)] * NODES, faults)
    first = to_record(first_params(task, build(task.config).model))
    strategy(task, folder / "run", **policy).start(grid, first, task.config.rounds, POLICY.deadline)
    return grid


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in the simulator."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    simulate(folder, toy().config)
    return folder


@pytest.mark.parametrize("contribute", [jax_client(), numpy_client])
def test_the_federation_is_a_simulation_with_the_same_clients(
    tmp_path: Path, simulated: Path, contribute: Contribute
):
    play(tmp_path, contribute=contribute)
    assert_same(read_records(tmp_path / "run"), read_records(simulated))


def test_its_run_folder_is_that_of_a_simulation_and_can_be_reported(
    tmp_path: Path, simulated: Path
):
    play(tmp_path)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in simulated.iterdir()}
    one, other = (read_json(f / "config.json") for f in (tmp_path / "run", simulated))
    # The server does not have the clients' data, so it cannot tell which data that is.
    assert one.pop("data_digest") != other.pop("data_digest")
    assert one == other
    assert [r.summary["task"] for r in load_runs([tmp_path / "run"])] == ["toy"]


def test_nothing_of_a_client_travels_but_one_vector_and_the_token_it_was_given(tmp_path: Path):
    grid = play(tmp_path)
    w, p = 1, 5
    for reply in grid.received:
        assert set(reply.content) == {SUM, ROUND}
        vectors = to_arrays(reply.content.array_records[SUM])
        assert {k: v.shape for k, v in vectors.items()} == {"float32": (w + 1 + p + p + 1,)}
        assert set(reply.content.config_records[ROUND]) == {"token"}
    for message in grid.sent:
        assert set(to_arrays(message.content.array_records["arrays"])) == {"params.w", "alpha"}


def nan(reply: Message) -> Message:
    vector = to_arrays(reply.content.array_records[SUM])["float32"] * np.nan
    return with_sum(reply, vector)


def with_sum(reply: Message, vector: np.ndarray) -> Message:
    reply.content[SUM] = to_record({vector.dtype.name: vector})
    return reply


BETA, LOSS, COUNT = 1, 2, 7  # where they begin, after the toy's one parameter


def changed(reply: Message, place: int, value: float) -> Message:
    vector = to_arrays(reply.content.array_records[SUM])["float32"]
    vector[place] = value
    return with_sum(reply, vector)


def with_bytes(reply: Message, dtype: str | None) -> Message:
    """The right numbers in another byte order, or in an archive of arrays."""
    vector = to_arrays(reply.content.array_records[SUM])["float32"]
    file = io.BytesIO()
    np.save(file, vector.astype(dtype)) if dtype else np.savez(file, vector)
    reply.content.array_records[SUM]["float32"].data = file.getvalue()
    return reply


def dies(_: Message) -> None:
    return None


def declines(reply: Message) -> Message:
    reply.content = RecordDict({DECLINED: ConfigRecord()})
    return reply


def forges(reply: Message) -> Message:
    reply.content[ROUND] = ConfigRecord({"token": "of another round"})
    return reply


FAULTS = {
    "NaN": (nan, "a number in its vector is not finite", 1),
    "shape": (lambda r: with_sum(r, np.ones(99, np.float32)), "where {'float32': 13}", 1),
    "type": (lambda r: with_sum(r, np.ones(13)), "where {'float32': 13}", 1),
    "order": (lambda r: with_bytes(r, ">f4"), "its vector cannot be read", 1),
    "archive": (lambda r: with_bytes(r, None), "its vector cannot be read", 1),
    "negative": (lambda r: changed(r, COUNT, -1), "N_1 is -1; it must be a whole number", 1),
    "half": (lambda r: changed(r, COUNT, 1.5), "N_1 is 1.5; it must be a whole number", 1),
    "weight": (lambda r: changed(r, BETA, 1e6), "β is 1000000, while Σ α N is", 1),
    "left out": (lambda r: changed(r, -1, 1), "while all 1 clients are left out", 1),
    "loss": (
        lambda r: changed(changed(r, COUNT, 0), LOSS, 1),
        "L_1 is 1, while N_1 is 0",
        1,
    ),
    "token": (forges, "belongs to another attempt or round", 1),
    "silence": (dies, "no longer waited for", 0),
    "declines": (declines, "does not join", 0),
}


@pytest.fixture(scope="module")
def simulated_without_the_last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    simulate(folder, toy().config, NODES - 1)
    return folder


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_client_is_left_out_and_the_sum_is_that_of_the_others(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    simulated_without_the_last: Path,
    name: str,
):
    fault, line, left_out = FAULTS[name]
    play(tmp_path, faults={3: fault})
    records = read_records(tmp_path / "run")
    assert_same(records, read_records(simulated_without_the_last))
    assert [r["left_out"] for r in records] == [left_out] * 3
    assert line in caplog.text


@pytest.mark.parametrize("what", ["program", "task", "schema"])
def test_a_client_with_other_terms_takes_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, simulated_without_the_last: Path, what: str
):
    """In the clear, too: it says what differs, and the sum is that of the others."""
    task = toy()
    config = msgspec.structs.replace(task.config, seed=7)
    schema = {**task.schema, "labels": ["sick", "healthy"]}
    other: dict[str, dict[str, Any]] = {
        "program": {"program": "0.0.9"},
        "task": {"config": config},
        "schema": {"schema": schema},
    }
    (tmp_path / "other").mkdir()
    write_task(tmp_path, task)
    write_task(tmp_path / "other", task._replace(**other[what]))
    apps = [client_app(tmp_path, numpy_client)] * (NODES - 1)
    grid = FakeGrid([*apps, client_app(tmp_path / "other", numpy_client)])
    first = to_record(first_params(task, build(task.config).model))
    strategy(task, tmp_path / "run").start(grid, first, task.config.rounds, POLICY.deadline)
    assert_same(read_records(tmp_path / "run"), read_records(simulated_without_the_last))
    assert f"refused: {what} is " in caplog.text


def test_a_contribution_of_another_framework_s_bytes_is_refused(tmp_path: Path, caplog: Any):
    def fault(reply: Message) -> Message:
        record = to_record({"float32": np.ones(13, np.float32)})
        record["float32"].data = b"\x80\x05pickled"
        reply.content[SUM] = record
        return reply

    play(tmp_path, faults={3: fault})
    assert "its vector cannot be read" in caplog.text


def test_a_sum_that_cannot_be_is_abandoned_and_said(
    tmp_path: Path, simulated: Path, caplog: pytest.LogCaptureFixture
):
    """Each of two clients may say 3e38, but not both."""
    said: list[Message] = []

    def shouts_at_first(reply: Message) -> Message:
        said.append(reply)
        return changed(reply, LOSS, 3e38) if len(said) <= 2 else reply

    play(tmp_path, faults={2: shouts_at_first, 3: shouts_at_first})
    reason = "the sum cannot be right: a number of it is not finite"
    assert f"round 1 abandoned (attempt 1 of 3): {reason}" in caplog.text
    assert_same(read_records(tmp_path / "run"), read_records(simulated))


def test_a_round_with_too_few_reports_is_abandoned_tried_again_and_not_lost(
    tmp_path: Path, simulated: Path, caplog: pytest.LogCaptureFixture
):
    calls: list[Message] = []

    def dies_at_first(reply: Message) -> Message | None:
        calls.append(reply)
        return None if len(calls) == 1 else reply

    play(tmp_path, faults={3: dies_at_first}, minimum=NODES)
    assert_same(read_records(tmp_path / "run"), read_records(simulated))
    assert "round 1 abandoned (attempt 1 of 3): 3 reports came, and 4 are needed" in caplog.text


def test_a_reply_to_an_abandoned_attempt_is_not_taken_in_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Client 3 is too late for attempt 1 and sends the same words in attempt 2."""
    late: list[RecordDict] = []

    def replays(reply: Message) -> Message | None:
        late.append(reply.content)
        if len(late) == 1:
            return None
        reply.content = late[0]
        return reply

    with pytest.raises(NoProgress):
        play(tmp_path, toy(rounds=1), faults={3: replays}, minimum=NODES)
    assert caplog.text.count("is refused: its answer belongs to another attempt or round") == 2


def test_without_progress_a_run_ends_in_failure(tmp_path: Path):
    with pytest.raises(NoProgress, match="round 1 was abandoned 3 times"):
        play(tmp_path, faults=dict.fromkeys(range(3), dies))
    assert read_records(tmp_path / "run") == []
    assert not (tmp_path / "run" / "summary.json").exists()


def test_over_selection_asks_more_and_takes_the_first(tmp_path: Path):
    grid = play(tmp_path, toy(rounds=2, nodes=2), clients=2, over_selection=1.6, minimum=2)
    assert len(grid.sent) == 2 * 4  # ⌈1.6 · 2⌉ each round
    sizes = dealt(build(toy().config).data.train, NODES).sizes
    for record in read_records(tmp_path / "run"):
        assert sum(record["count"]) in [a + b for a, b in itertools.combinations(sizes, 2)]


def test_a_run_goes_on_from_its_checkpoint_to_the_same_numbers(tmp_path: Path, simulated: Path):
    calls: list[Message] = []

    def server_dies(reply: Message) -> Message:
        calls.append(reply)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, faults={0: server_dies})
    assert [r["round"] for r in read_records(tmp_path / "run")] == [1]
    play(tmp_path)
    assert_same(read_records(tmp_path / "run"), read_records(simulated))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minimum": 0}, "minimum number of reports is 0; it must be from 1 to"),
        ({"minimum": 5}, "minimum number of reports is 5; it must be from 1 to"),
        ({"over_selection": 0.5}, "over-selection is 0.5; it must be at least 1"),
        ({"deadline": 0.0}, "deadline is 0.0 seconds; it must be above 0"),
        ({"attempts": 0}, "attempts is 0; it must be at least 1"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(tmp_path: Path, change: Any, message: str):
    with pytest.raises(BadInput, match=message):
        strategy(toy(), tmp_path, **change)


def test_a_task_file_is_read_back_or_refused(tmp_path: Path):
    write_task(tmp_path, toy())
    assert read_task(tmp_path) == toy()
    (tmp_path / "task.json").write_text(json.dumps({"config": {"nonsense": 1}, "domains": []}))
    with pytest.raises(BadInput, match=r"task.json is no task of a federation"):
        read_task(tmp_path)


@pytest.mark.parametrize(
    ("name", "target"), [("fedavg-target", "centre 1"), ("drfa", None), ("q-fedavg", None)]
)
def test_algorithms_with_rounds_of_their_own_are_not_deployed(name: str, target: str | None):
    with pytest.raises(BadInput, match=f"'{name}' cannot be deployed"):
        federated_config(resolve("toy", name, target), 3)


def test_a_private_run_is_not_deployed():
    private = resolve("toy", sets=["dp.epsilon=8.0", "dp.delta=1e-6"])
    with pytest.raises(BadInput, match="deploy with --secure"):
        federated_config(private, 3)


@pytest.mark.parametrize("setting", ["compress.bits=4", "compress.top_k=0.5"])
def test_compressed_updates_travel_and_add_up_as_in_the_simulator(tmp_path: Path, setting: str):
    config = federated_config(resolve("toy", rounds=2, sets=[setting]), NODES)
    play(tmp_path, task=toy()._replace(config=config))
    assert_same(read_records(tmp_path / "run"), simulate(tmp_path / "simulated", config))


def test_options_that_would_do_nothing_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="takes what to do from its config alone"):
        strategy(toy(), tmp_path).start(
            FakeGrid([]), ArrayRecord(), train_config=ConfigRecord({"lr": 1.0})
        )


def test_parameters_come_back_from_their_names():
    params: Any = {"b": {"x": np.ones((2, 3), np.float32)}, "a": [np.zeros(2, np.float32)]}
    arrays = tree.named(params)
    assert list(arrays) == ["a.0", "b.x"]
    back = tree.from_named(arrays, params)
    np.testing.assert_array_equal(back["b"]["x"], params["b"]["x"])
