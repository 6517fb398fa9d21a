# SPDX-License-Identifier: Apache-2.0
"""Federations whose clients evaluate, against the simulator; the server has no example at all."""

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from rich.console import Console

from agnosticfl.deploy.agree import agreement_of, of_kind
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.federation import LOG, NoProgress
from agnosticfl.deploy.flower.records import REQUEST, ROUND, SECURE, SUM, to_arrays, to_record
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.flower.server_app import first_params, no_data, server_data
from agnosticfl.deploy.flower.standing import Standing
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.node.contribute import jax_client
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.seeing.keeper import begun, first, told, watched
from agnosticfl.deploy.seeing.page import page
from agnosticfl.deploy.seeing.status import PLAYING, STATUS, Server, Status, View, read, write
from agnosticfl.deploy.seeing.status import SERVER as SERVER_FILE
from agnosticfl.deploy.seeing.terminal import shown
from agnosticfl.deploy.supervise.local import make_members
from agnosticfl.deploy.task import (
    EVALUATION,
    TRAINING,
    FederatedTask,
    federated_config,
    new_task,
    write_task,
)
from agnosticfl.files import read_json
from agnosticfl.registry import MODELS
from agnosticfl.report import write_report
from agnosticfl.report.comparison import compare_runs
from agnosticfl.report.details import ledger
from agnosticfl.report.runs import load_runs
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.secagg.memory import load
from agnosticfl.secagg.messages import Setup, kind_of, parse
from agnosticfl.secagg.primitives import verify_key
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid, Fault
from tests.deploy.federations import NODES, POLICY, SERVER
from tests.deploy.judged import assert_alike, assert_same_run, resolve_server, simulate

METRICS = '["accuracy", "auroc", "f1", "calibration_error"]'
BY_CLIENTS = ("evaluation_every=2", "evaluation_by=clients", "evaluation_share=0.4")
POINTS = (*BY_CLIENTS, "data.clients=24", "data.examples=10", f"model.metrics={METRICS}")
SUMS = "run.sums"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


def task_of(name: str, *sets: str) -> FederatedTask:
    config = federated_config(resolve(name, rounds=3, sets=sets), NODES)
    task = new_task(config, build(config).data, verify_key(SERVER).hex())
    return task._replace(run=f"{name}-of-the-tests")


def points(*sets: str) -> FederatedTask:
    """A classifier, with metrics of every kind."""
    return task_of("synthetic-points", *POINTS, *sets)


def toy(*sets: str) -> FederatedTask:
    """The toy, whose clients need nothing compiled to train."""
    return task_of("toy", *BY_CLIENTS, *sets)


def figures(folder: Path) -> Callable[[int], dict[str, Any]]:
    return lambda place: {name: str(folder / f"{place}.{name}") for name in ("figures", "audit")}


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def play(
    folder: Path,
    task: FederatedTask,
    faults: dict[int, Fault] | None = None,
    keys: Path | None = None,
    data: Any = None,
    node: Callable[[int], dict[str, Any]] = lambda _: {},
    **policy: Any,
) -> FakeGrid:
    """A run in the folder `run`, in the clear or under the keys; the grid it went over."""
    folder.mkdir(exist_ok=True)
    write_task(folder, task)

    def settings(place: int) -> dict[str, Any]:
        own = {**figures(folder)(place), **node(place)}
        if keys is not None:
            own |= {"roster": str(keys / "roster"), "signing-key": str(keys / f"{place}.sign")}
            own |= {"memory": str(folder / f"{place}.memory")}
        return own

    contribute = numpy_client if task.config.task == "toy" else jax_client()
    grid = FakeGrid([client_app(folder, contribute)] * NODES, faults, settings)
    rules = POLICY._replace(
        **{"minimum": 3, "attempts": 2, "step": 0.2, "deadline": 20.0, **policy}
    )
    held = server_data(task, {"data": ""}) if data is None else data
    if keys is None:
        strategy = AgnosticStrategy(task.config, folder / "run", rules, held)
    else:
        standing = Standing(agreement_of(task, read_roster(keys / "roster"), 3, 1))
        strategy = SecureStrategy(task.config, folder / "run", rules, held, standing, SERVER)
    first = to_record(first_params(task, MODELS.build(task.config.model, "model")))
    strategy.start(grid, first, task.config.rounds, rules.deadline)
    return grid


def make_keys(folder: Path, task: FederatedTask) -> Path:
    folder.mkdir()
    names = [folder / f"{node}.key" for node in range(NODES)]
    make_members(names, [task.domains] * NODES, folder / "roster")
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of members who hold the domains of the toy."""
    return make_keys(tmp_path_factory.mktemp("members") / "keys", toy())


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeGrid]:
    """The toy in the clear."""
    folder = tmp_path_factory.mktemp("clear")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "SHORTEST", 0.01)
        return folder, play(folder, toy())


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in the simulator."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    simulate(folder, toy().config, NODES)
    return folder


@pytest.fixture(scope="module")
def simulated_points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    simulate(folder, points().config, NODES)
    return folder


def test_the_federation_judges_as_the_simulation_does(
    clear: tuple[Path, FakeGrid], simulated: Path, simulated_points: Path, tmp_path: Path
):
    assert_same_run(clear[0] / "run", simulated)
    assert read_json(simulated / "summary.json")["best"]["round"] == 2
    play(tmp_path, points())
    assert_same_run(tmp_path / "run", simulated_points)
    # What a client measured for itself is in its audit log, too.
    measured = read_lines(tmp_path / "0.figures")
    audited = [line for line in read_lines(tmp_path / "0.audit") if line["kind"] == EVALUATION]
    assert [line["round"] for line in audited] == [line["number"] for line in measured]
    for line, figure in zip(audited, measured, strict=True):
        assert {"loss": line["loss"], **line["metrics"]} == figure["overall"]
        assert line["examples"] == sum(figure["examples"].values())
        assert line["metrics"].keys() == set(json.loads(METRICS))


def test_evaluations_are_in_the_ledger(clear: tuple[Path, FakeGrid], simulated: Path):
    p = len(toy().domains)
    # Down w, one number of 32 bits; up Σ loss and N of each domain and "left out", of 64.
    once = {"evaluation_bytes_down": NODES * 4, "evaluation_bytes_up": NODES * 8 * (2 * p + 1)}
    for folder in (clear[0] / "run", simulated):
        for record in read_records(folder):
            asked = {name: record[name] for name in once if name in record}
            assert asked == (once if record["round"] == 2 else {})
    whole = read_json(clear[0] / "run" / "summary.json")["bytes"]
    assert {name: whole[name] for name in once} == {n: 4 * size for n, size in once.items()}
    table = ledger(compare_runs(load_runs([clear[0] / "run"])))
    assert [entry.text for entry in table.header][-2:] == ["whole run", "of that, evaluations"]
    trained = sum(r["bytes_down"] + r["bytes_up"] for r in read_records(clear[0] / "run"))
    whole, asked = (entry.value or 0 for entry in table.rows[0][-2:])
    assert asked == 4 * sum(once.values())
    assert whole == trained + asked
    # Who looks at the server sees all of it, too.
    status = begun(first(toy(), clear[0] / "run"), read_records(clear[0] / "run"), 0.0)
    for event in range(3):
        status = told(status, {"event": "evaluation", **_as_event(once), "number": event}, 0.0)
    assert status.bytes_down + status.bytes_up == whole


def test_who_looks_at_the_server_sees_which_sum_is_under_way():
    fields = {"event": "stage", "round": 3, "attempt": 1, "stage": "joins", "asked": 4}
    ended = msgspec.structs.replace(first(toy(), Path("run")), done=3, phase=PLAYING)

    def seen(status: Status) -> str:
        return View(0.0, True, Server(0, 0.0, "", "", ""), status).in_words

    assert seen(ended) == "all rounds are done; the models are judged"
    asked = told(ended, {**fields, "kind": EVALUATION}, 0.0)
    assert seen(asked) == "evaluation 3: joins"
    came = told(asked, {**fields, "event": "answers", "came": 4, "seconds": 1.0}, 0.0)
    assert [stage.name for stage in came.so_far] == ["joins, evaluation 3"]
    training = told(msgspec.structs.replace(asked, done=1), {**fields, "kind": TRAINING}, 0.0)
    assert seen(training) == "round 2 of 3: joins"


def _as_event(asked: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix("evaluation_"): size for name, size in asked.items()}


def test_a_secure_federation_judges_as_the_simulation_does(
    tmp_path: Path, keys: Path, simulated: Path, simulated_points: Path
):
    task = toy("secure.name=simulate")
    play(tmp_path / "toy", task, keys=keys)
    assert_same_run(tmp_path / "toy" / "run", simulated)
    # A look; the last model on both parts; the best one on what is for the end.
    assert {f.name for f in (tmp_path / "toy" / SUMS).iterdir()} == {
        f"evaluation-{number}" for number in (1, 2, 3, 6)
    }
    agreement = agreement_of(task, read_roster(keys / "roster"), 3, 1)
    names = [of_kind(agreement, task.config, kind).run for kind in (TRAINING, EVALUATION)]
    opened = load((tmp_path / "toy" / "0.memory").read_bytes()).opened
    assert dict(opened) == dict(zip(names, (3, 6), strict=True))
    other = points("secure.name=simulate")
    play(tmp_path / "points", other, keys=make_keys(tmp_path / "keys", other))
    assert_same_run(tmp_path / "points" / "run", simulated_points)


def test_the_server_needs_no_example_and_its_run_can_be_reported(
    clear: tuple[Path, FakeGrid], tmp_path: Path
):
    folder = clear[0] / "run"
    held = no_data(toy())
    assert held.train.num_examples == held.test.num_examples == 0
    assert held.heldout is None
    assert "server" not in read_json(folder / "summary.json")
    write_report([folder], tmp_path)
    notes = read_json(tmp_path / "comparison.json")["notes"]["loss"]
    assert any("clients measured it" in note for note in notes)


def test_nothing_of_a_client_travels_but_one_vector(clear: tuple[Path, FakeGrid]):
    kinds = [m.content.config_records[ROUND]["kind"] for m in clear[1].sent]
    assert kinds.count(EVALUATION) == 4 * NODES
    for message, reply in zip(clear[1].sent, clear[1].received, strict=True):
        assert set(reply.content) == {SUM, ROUND}
        assert set(reply.content.config_records[ROUND]) == {"token"}
        if message.content.config_records[ROUND]["kind"] == EVALUATION:
            vectors = to_arrays(reply.content.array_records[SUM])
            assert {name: v.ndim for name, v in vectors.items()} == {"float64": 1}


def test_the_operator_sees_its_own_site_s_figures_and_only_these(
    clear: tuple[Path, FakeGrid], simulated: Path
):
    files = [clear[0] / f"{place}.figures" for place in range(NODES)]
    lines = [read_lines(file) for file in files]
    assert [[line["number"] for line in own] for own in lines] == [[1, 2, 3, 6]] * NODES
    total = read_json(simulated / "summary.json")
    for domain, number in total["examples"]["test"].items():
        own = [each[2] for each in lines]
        assert [line["split"] for line in own] == ["test"] * NODES
        assert sum(line["examples"][domain] for line in own) == number
        loss = sum(
            line["examples"][domain] * (line["domains"][domain]["loss"] or 0) for line in own
        )
        assert loss / number == pytest.approx(total["test"][domain]["loss"], rel=2e-5)
    assert len({json.dumps(each[2]["domains"]) for each in lines}) == NODES


def test_a_server_with_a_test_store_shows_both(tmp_path: Path, simulated: Path):
    task = toy()
    own = build(resolve_server(task.config)).data
    play(tmp_path, task, data=no_data(task)._replace(test=own.test))
    found, expected = (read_json(f / "summary.json") for f in (tmp_path / "run", simulated))
    assert_alike(found["server"], expected["server"])
    assert_alike(found["test"], expected["test"])


def test_held_out_weights_need_no_data_on_the_server(tmp_path: Path, keys: Path):
    follow = "weights_follow=heldout"
    expected = simulate(tmp_path / "simulated", toy(follow).config, NODES)
    play(tmp_path / "clear", toy(follow))
    play(tmp_path / "secure", toy(follow, "secure.name=simulate"), keys=keys)
    for name in ("clear", "secure"):
        found = read_json(tmp_path / name / "run" / "summary.json")
        np.testing.assert_allclose(found["domain_weights"], expected["domain_weights"], rtol=1e-4)
        here = read_records(tmp_path / name / "run")
        there = read_records(tmp_path / "simulated")
        for mine, theirs in zip(here, there, strict=True):
            np.testing.assert_allclose(mine["heldout_loss"], theirs["heldout_loss"], rtol=1e-4)


def of_evaluation(fault: Fault) -> Fault:
    """Only in answers that are tallies; these are longer than what trains."""

    def only(reply: Message) -> Message | None:
        record = reply.content.array_records.get(SUM)
        return fault(reply) if record is not None and "float64" in record else reply

    return only


def test_a_tally_that_cannot_be_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def lies(reply: Message) -> Message:
        vector = to_arrays(reply.content.array_records[SUM])["float64"]
        vector[-2] += 0.5  # of a domain's examples; after it comes whether it is left out
        reply.content[SUM] = to_record({"float64": vector})
        return reply

    play(tmp_path, toy(), faults={3: of_evaluation(lies)})
    assert "is refused: its examples are" in caplog.text
    found = read_json(tmp_path / "run" / "summary.json")
    files = [(tmp_path / f"{place}.figures").read_text().splitlines() for place in range(3)]
    others = [json.loads(lines[2])["examples"] for lines in files]
    for domain, number in found["examples"]["test"].items():
        assert number == sum(own[domain] for own in others)


def secure_answers(grid: FakeGrid, kind: str) -> list[bytes]:
    found: list[bytes] = []
    for message in grid.sent:
        request: Any = message.content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
        if request and kind_of(request) == kind:
            found.append(request)
    return found


@pytest.mark.attack(
    "two evaluations under one number, or one with a training's answers",
    "sums of each kind have names and numbers of their own, each opened once",
)
def test_no_evaluation_is_opened_twice(tmp_path: Path, keys: Path, caplog: Any):
    """A server that lost its sums asks again; clients answered these numbers already."""
    task = toy("secure.name=simulate")
    grid = play(tmp_path, task, keys=keys)
    assert len({parse(request, Setup).run for request in secure_answers(grid, "Setup")}) == 2
    (tmp_path / "run" / "summary.json").unlink()
    for file in (tmp_path / SUMS).iterdir():
        file.unlink()
    with pytest.raises(NoProgress):
        play(tmp_path, task, keys=keys)
    assert "this client helped to open the sum of round 6 already" in caplog.text


def test_sums_that_were_opened_are_not_asked_for_again(tmp_path: Path, keys: Path):
    task = toy("secure.name=simulate")
    play(tmp_path, task, keys=keys)
    before = read_json(tmp_path / "run" / "summary.json")
    (tmp_path / "run" / "summary.json").unlink()
    grid = play(tmp_path, task, keys=keys)
    assert grid.sent == []
    assert read_json(tmp_path / "run" / "summary.json") == before


def third_lost(kind: str) -> Fault:
    """The third answer of that kind does not arrive: after two rounds, that of the first look."""
    seen: list[Message] = []

    def fault(reply: Message) -> Message | None:
        answer: Any = reply.content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
        if answer and kind_of(answer) == kind:
            seen.append(reply)
            return None if len(seen) == 3 else reply
        return reply

    return fault


def test_a_look_that_is_lost_while_it_is_opened_is_left_out(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """Two have revealed their seeds for it, and will not do so again; training goes on."""
    faults = {2: third_lost("Revealed"), 3: third_lost("Revealed")}
    play(tmp_path, toy("secure.name=simulate"), keys=keys, faults=faults)
    assert "no client had an example to look at after round 2" in caplog.text
    assert not any("heldout" in record for record in read_records(tmp_path / "run"))
    found = read_json(tmp_path / "run" / "summary.json")
    assert "best" not in found
    assert sum(found["examples"]["test"].values()) > 0


def test_who_is_lost_in_an_evaluation_is_lost_in_that_and_in_no_round(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """In the status, in the terminal and on the page, and in every line of the log."""
    state, out, task = tmp_path / "state", tmp_path / "run", toy("secure.name=simulate")
    state.mkdir()
    write(state, SERVER_FILE, Server(0, 0.0, str(out), "", clients=()))
    caplog.set_level("INFO", "flwr")
    with watched(LOG, task, out, str(state), "text"):
        play(
            tmp_path,
            task,
            keys=keys,
            faults={3: third_lost("Masked")},
            minimum=4,
            deadline=2.0,
        )
    status = read(state, STATUS, Status)
    assert status is not None
    assert {(lost.during, lost.kind, lost.round) for lost in status.lost} == {
        ("evaluation 1", EVALUATION, 1)
    }
    seen = View(0.0, True, Server(0, 0.0, str(out), "", clients=()), status)
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(shown(seen))
    assert "evaluation 1" in console.export_text()
    assert "evaluation 1: " in page(seen)
    assert "evaluation 1 abandoned (attempt 1 of 2)" in caplog.text
    assert "evaluation 1: secure sum of 4 clients" in caplog.text
    assert not re.search(r"round \d+ abandoned", caplog.text)
    done = [int(line) for line in re.findall(r"round (\d+): secure sum of", caplog.text)]
    assert done == [1, 2, 3]


def test_a_limit_that_an_evaluation_reaches_is_no_failure_of_the_round_that_was_prepared(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
):
    """Rounds 1 and 2 and a look between, of three that are allowed; round 3 was joined before."""
    limit = {"most-rounds": 3, "rounds": str(tmp_path / "rounds.json")}
    caplog.set_level("INFO", "flwr")
    play(
        tmp_path,
        toy("secure.name=simulate"),
        keys=keys,
        node=lambda place: {} if place else limit,
        attempts=1,
    )
    declined = [line for line in read_lines(tmp_path / "0.audit") if line["event"] == "declined"]
    assert (declined[0]["asked"], declined[0]["round"]) == ("train: Boxes", 3)
    assert "the most its operator allows" in declined[0]["why"]
    assert not [line for line in read_lines(tmp_path / "0.audit") if line["event"] == "failed"]
    events = [r.args.get("event") for r in caplog.records if isinstance(r.args, dict)]
    assert "declined" in events
    assert "lost" not in events
    assert len(read_records(tmp_path / "run")) == 3


def test_a_client_that_does_not_evaluate_refuses(tmp_path: Path, caplog: Any):
    task = toy()
    asks = task.config
    write_task(tmp_path, task._replace(config=resolve_server(asks)))
    grid = FakeGrid([client_app(tmp_path)] * NODES)
    rules = POLICY._replace(deadline=20.0, attempts=1)
    strategy = AgnosticStrategy(asks, tmp_path / "run", rules, no_data(task))
    first = to_record(first_params(task, MODELS.build(asks.model, "model")))
    with pytest.raises(NoProgress):
        strategy.start(grid, first, 3, 20.0)
    assert "the task has no evaluation 1" in caplog.text
    assert math.isfinite(read_records(tmp_path / "run")[0]["loss"][0])
