# SPDX-License-Identifier: Apache-2.0
"""Runs followed by MLflow and Weights & Biases, read back from the files that these write."""

import json
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.errors import BadInput
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run

TAG = "domain_weights/centre 1"


def stopped_and_resumed(folder: Path, tracker: str) -> None:
    config = resolve("toy", rounds=6)
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            config, folder, track=[tracker],
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 4,
        )  # fmt: skip
    run(config, folder, track=[tracker], resume=True)


def expected(folder: Path) -> list[tuple[int, float]]:
    return [(record["round"], record["domain_weights"][4]) for record in read_records(folder)]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_library_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"--track {name} needs {name}: pip install 'agnosticfl\[{name}\]'"
    with pytest.raises(BadInput, match=message):
        run(resolve("toy"), tmp_path / "run", track=[name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"unknown tracker 'mlfow'; did you mean 'mlflow'\?"):
        run(resolve("toy"), tmp_path / "run", track=["mlfow"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_mlflow_gets_every_round_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="needs the extra 'mlflow'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    stopped_and_resumed(tmp_path / "run", "mlflow")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:

        def query(text: str) -> list[tuple[Any, ...]]:
            return database.execute(text).fetchall()

        assert query("select name, status from runs") == [("AFA seed 0", "FINISHED")]
        assert query("select name from experiments where name like 'agnosticfl%'") == [
            ("agnosticfl-toy",)
        ]
        values = query(f"select step, value from metrics where key = '{TAG}' order by step")
        assert values == expected(tmp_path / "run")
        assert query("select value from params where key = 'weight_rule.learning_rate'") == [
            ("0.0125",)
        ]
        test = json.loads((tmp_path / "run" / "summary.json").read_text())["test"]
        assert query("select value from metrics where key = 'test/loss/centre 1'") == [
            (test["centre 1"]["loss"],)
        ]


def history(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows in a .wandb file: LevelDB's log, blocks of 32 KiB, after a header of 7 bytes."""
    # It is an extra, and its own types do not know what protobuf makes.
    from wandb.proto.wandb_internal_pb2 import (  # pyright: ignore[reportMissingImports]
        Record,  # pyright: ignore[reportAttributeAccessIssue]
    )

    place, parts = 7, b""
    while place + 7 <= len(data):
        if 0 < (rest := -place % 32768) < 7:  # too little for a head: filled with zeros
            place += rest
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if items:
                yield {key: json.loads(text) for key, text in items.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_wandb_gets_every_round_under_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="needs the extra 'wandb'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    stopped_and_resumed(tmp_path / "run", "wandb")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert {file.stem for file in files} == {f"run-{(tmp_path / 'run/wandb-run.txt').read_text()}"}
    rows = [row for file in files for row in history(file.read_bytes())]
    assert [(row["_step"], row[TAG]) for row in rows] == expected(tmp_path / "run")
    test = json.loads((tmp_path / "run" / "summary.json").read_text())["test"]
    assert rows[-1]["test/loss/centre 1"] == test["centre 1"]["loss"]
