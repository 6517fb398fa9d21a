# SPDX-License-Identifier: Apache-2.0
"""What a client writes down of what it was asked and what left it, and what its operator allows."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from agnosticfl.core import tree
from agnosticfl.core.evaluate import full_evaluator
from agnosticfl.core.federated import FederatedData
from agnosticfl.deploy.flower.client_app import client_app, round_name
from agnosticfl.deploy.flower.farewell import say_farewell
from agnosticfl.deploy.flower.federation import Attempt, NoProgress, request, stamp
from agnosticfl.deploy.flower.records import REQUEST, ROUND, SECURE, SUM, to_record
from agnosticfl.deploy.flower.server_app import first_params, server_data
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.node import audit, evaluate
from agnosticfl.deploy.node.allowance import Allowance, read_consented
from agnosticfl.deploy.node.examples import dealt_to
from agnosticfl.deploy.task import KINDS, TRAINING, federated_config, new_task, write_task
from agnosticfl.errors import BadInput
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.runs.build import build
from agnosticfl.runs.config import Config
from agnosticfl.runs.judging import own_parts
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.secagg.primitives import verify_key
from tests.deploy import secure
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid
from tests.deploy.federations import NODES, POLICY, SERVER, toy


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def play(folder: Path, node: dict[str, Any], rounds: int = 2, **policy: Any) -> FakeGrid:
    """Rounds in the clear; the first node is started with `node`."""
    folder.mkdir(exist_ok=True)
    task = toy(rounds)
    write_task(folder, task)
    first = {"audit": str(folder / "audit.jsonl"), "server": "fl.example.org:8000", **node}
    grid = FakeGrid(
        [client_app(folder, numpy_client)] * NODES, None, lambda place: {} if place else first
    )
    data = server_data(task, {"data": ""})
    strategy = AgnosticStrategy(
        task.config, folder / "run", POLICY._replace(minimum=NODES, **policy), data
    )
    params = to_record(first_params(task, build(task.config).model))
    try:
        strategy.start(grid, params, rounds, POLICY.deadline)
    finally:
        say_farewell(grid, rounds)
    return grid


def test_each_contribution_is_written_down_before_it_leaves(tmp_path: Path):
    grid = play(tmp_path, {})
    found = lines(tmp_path / "audit.jsonl")
    assert [(line["event"], line["round"]) for line in found] == [
        ("contributed", 1),
        ("contributed", 2),
        ("over", 2),
    ]
    own = dealt_to(build(toy().config).data.train, 0, NODES)
    for line in found[:2]:
        assert line["time"].endswith("+00:00")
        assert (line["server"], line["run"]) == ("fl.example.org:8000", "toy-of-the-tests")
        assert (line["task"], line["asked"], line["attempt"]) == ("toy", "train", 1)
        assert line["kind"] == "training"
        assert line["examples"] == own.num_examples
        assert (line["noise"], line["privacy_spent"]) == (None, None)
        assert line["readable_by_server"] is True
    # The first loss is that of w_0.
    w = float(np.asarray(first_params(toy(), build(toy().config).model)["w"]))
    x = own.examples["x"].astype(np.float64)
    assert found[0]["loss"] == pytest.approx(((x - w) ** 2).mean(), rel=1e-6)
    # What the server got is what is written down.
    reply = next(r for r in grid.received if r.metadata.src_node_id == grid.nodes[0])
    (name, array), *_ = reply.content.array_records[SUM].items()
    values = reply.content.config_records["round"]
    token = repr(values["token"]).encode()
    parts = [("round/token", token), (f"{SUM}/{name}", array.data)]
    whole = b"".join(f"{n} {len(p)}\n".encode() + p for n, p in parts)
    assert found[0]["left"] == {
        "bytes": sum(len(p) for _, p in parts),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    assert found[2]["rounds"] == 2


def points(*sets: str) -> Config:
    """A classifier whose clients evaluate."""
    sets = ("data.clients=24", "data.examples=10", "evaluation_by=clients", *sets)
    return resolve("synthetic-points", rounds=2, sets=[*sets, "evaluation_every=0"])


def whole(config: Config) -> FederatedData:
    return SOURCES.build(config.data, "data").train


def test_a_line_of_training_has_the_metrics_of_the_model_that_came(tmp_path: Path):
    """On what the client trains with; where the model has none but its loss, there is none."""
    config = federated_config(points('model.metrics=["accuracy", "auroc"]'), 1)
    task = new_task(config, build(config).data, verify_key(SERVER).hex())
    write_task(tmp_path, task)
    log = tmp_path / "audit.jsonl"
    grid = FakeGrid([client_app(tmp_path)], node_config=lambda _: {"audit": str(log)})
    strategy = AgnosticStrategy(
        config,
        tmp_path / "run",
        POLICY._replace(clients=1, minimum=1, deadline=60.0),
        server_data(task, {"data": ""}),
    )
    model = MODELS.build(config.model, "model")
    first = first_params(task, model)
    strategy.start(grid, to_record(first), 2, 60.0)
    own = own_parts(config, {"train": dealt_to(whole(config), 0, 1)})["train"]
    expected = full_evaluator(model, own)(tree.from_named(first, model.init(jax.random.key(0))))
    one, two = (line for line in lines(log) if line.get("kind") == TRAINING)
    assert one["examples"] == own.num_examples
    assert one["metrics"] == {
        name: pytest.approx(expected.overall[name], abs=1e-6) for name in ("accuracy", "auroc")
    }
    assert one["loss"] == pytest.approx(expected.overall["loss"], rel=1e-5)
    assert two["metrics"] != one["metrics"]  # of the next model
    for reply in grid.received:
        assert "auroc" not in repr(reply.content)


def test_metrics_of_many_examples_are_those_of_some_and_trouble_with_them_is_none_of_the_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    config = points()
    own = dealt_to(whole(config), 0, 1)
    params = tree.named(MODELS.build(config.model, "model").init(jax.random.key(0)))
    everything = evaluate.trained_metrics(config, None, own, params)
    assert everything.keys() == {"accuracy"}
    looked: list[int] = []
    theirs = evaluate.full_evaluator

    def noted(model: Any, data: Any, batch: int) -> Any:
        looked.append(data.num_examples)
        return theirs(model, data, batch)

    monkeypatch.setattr(evaluate, "full_evaluator", noted)
    monkeypatch.setattr(evaluate, "MOST", 7)
    assert evaluate.trained_metrics(config, None, own, params).keys() == {"accuracy"}
    assert looked == [7]
    assert evaluate.trained_metrics(config, None, own, {}) == {}
    assert "metrics for this client's audit log cannot be measured" in caplog.text


def test_no_example_is_in_the_log(tmp_path: Path):
    play(tmp_path, {})
    said = (tmp_path / "audit.jsonl").read_text()
    for value in dealt_to(build(toy().config).data.train, 0, NODES).examples["x"][:50]:
        assert repr(float(value)) not in said


def test_what_cannot_be_written_down_does_not_leave(tmp_path: Path):
    """The log's place is a folder: every answer of the first client is a failure."""
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(NoProgress):
        play(tmp_path, {}, attempts=1)


def test_secure_steps_are_written_down_each(tmp_path: Path, keys: Path):
    log = tmp_path / "audit.jsonl"
    grid = secure.play(
        tmp_path, keys, node_config=lambda place: {} if place else {"audit": str(log)}
    )
    found = lines(log)
    assert found[0]["asked"] == "query.join: Join"
    contributed = [line for line in found if line["event"] == "contributed"]
    assert len(contributed) == 1
    assert contributed[0]["asked"] == "train: Boxes"
    assert contributed[0]["readable_by_server"] is False
    assert contributed[0]["bounds"] == {"name": "simulate"}
    sent = [r for r in grid.received if r.metadata.src_node_id == grid.nodes[0]]
    assert len(found) == len(sent)
    sizes = [len(r.content.config_records[SECURE][REQUEST]) for r in sent]  # type: ignore[arg-type]
    for line, size in zip(found, sizes, strict=True):
        assert line["left"]["bytes"] > size


def test_an_operator_s_limit_on_rounds_holds_and_the_others_go_on(tmp_path: Path):
    counted = tmp_path / "rounds.json"
    play(tmp_path, {"most-rounds": 1, "rounds": str(counted)}, rounds=1)
    (taken,) = json.loads(counted.read_text()).values()
    assert len(taken) == 1
    with pytest.raises(NoProgress):  # all four are needed here
        play(tmp_path / "more", {"most-rounds": 1, "rounds": str(counted)}, rounds=1, attempts=1)
    (line, _) = lines(tmp_path / "more" / "audit.jsonl")
    assert line["event"] == "declined"
    assert (
        line["why"] == "it took part in 1 rounds of toy-of-the-tests, the most its operator allows"
    )


def test_secure_rounds_beyond_the_limit_are_not_joined(tmp_path: Path, keys: Path):
    """Four clients, of which one takes part in the first of two rounds only."""
    log = tmp_path / "audit.jsonl"
    node = {"audit": str(log), "most-rounds": 1, "rounds": str(tmp_path / "rounds.json")}
    secure.play(tmp_path, keys, rounds=2, node_config=lambda place: {} if place else node)
    assert len(read_records(tmp_path / "run")) == 2
    assert [line["round"] for line in lines(log) if line["event"] == "contributed"] == [1]
    assert json.loads((tmp_path / "rounds.json").read_text()) == {"toy-of-the-tests": ["1"]}


def test_without_the_operator_s_consent_nothing_leaves(tmp_path: Path):
    consent = tmp_path / "consent"
    with pytest.raises(NoProgress):
        play(tmp_path, {"consent": str(consent)}, rounds=1, attempts=1)
    (line, _) = lines(tmp_path / "audit.jsonl")
    assert line["event"] == "declined"
    assert line["why"] == f"its operator has not written toy-of-the-tests into {consent}"
    consent.write_text("another-run\ntoy-of-the-tests  # ethics board, 12 March\n")
    play(tmp_path / "again", {"consent": str(consent)}, rounds=1)
    assert read_consented(consent) == {"another-run", "toy-of-the-tests"}


def test_an_allowance_is_counted_by_run_and_round(tmp_path: Path):
    one = Allowance("a", 2, tmp_path / "rounds")
    for name in ("1", "1", "2"):
        one.take(name)
    assert one.unwilling("2") is None  # the same round again
    assert one.unwilling("3") is not None
    with pytest.raises(BadInput, match="the most its operator allows"):
        one.take("3")
    assert one._replace(run="b").unwilling("3") is None
    (tmp_path / "rounds").write_text("[]")
    with pytest.raises(BadInput, match="cannot be read"):
        one.unwilling("3")


@pytest.mark.parametrize("more", [{}, {SECURE: ConfigRecord()}])
def test_no_kind_of_sum_passes_for_another_that_was_taken_part_in(more: dict[str, ConfigRecord]):
    def name(kind: str) -> str:
        content = RecordDict({ROUND: stamp(Attempt(1, 1, "token", kind)), **more})
        return round_name(request(1, "train", content, 1.0))

    assert len({name(kind) for kind in KINDS}) == len(KINDS) > 1


def test_lines_are_added_and_never_replaced(tmp_path: Path):
    path = tmp_path / "log"
    for number in range(3):
        audit.note(path, {"number": number, "loss": float("nan")})
    assert [line["number"] for line in lines(path)] == [0, 1, 2]
    assert lines(path)[0]["loss"] is None
    before = path.read_bytes()
    audit.note(path, {"number": 3})
    assert path.read_bytes().startswith(before)
