# SPDX-License-Identifier: Apache-2.0
"""A store as the data of a task, from the command that makes it to a trained model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.sources.store import stored
from agnosticfl.data.store import write_store
from agnosticfl.errors import BadInput
from agnosticfl.report import write_report
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run

TASK = """# Which side of a line a point is on.
rounds = 20
clients_per_round = 5
batch_size = 10
[data]
name = "store"
path = "{path}"
made_by = "agnosticfl data prepare arrays points.csv --out {path}"
[model]
name = "logistic"
features = 2
classes = 2
[client_optimizer]
name = "sgd"
learning_rate = 1.0
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "line.toml").write_text(TASK.format(path=tmp_path / "line.store"))
    return str(tmp_path / "line.toml")


def points() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 400))
    split = np.where(np.arange(400) < 300, "train", "test")
    client = np.char.add(split, rng.integers(10, size=400).astype(str))
    return {"a": a, "b": b, "y": (a > b).astype(int), "who": client, "split": split,
            "kind": np.where(rng.random(400) < 0.2, "rare", "common")}  # fmt: skip


def test_a_task_trains_from_a_store(tmp_path: Path, task: str):
    roles: dict[str, Any] = {"client": "who", "domain": "kind", "label": "y", "split": "split"}
    write_store(from_frame(points(), **roles), tmp_path / "line.store")
    summary = run(resolve(task), tmp_path / "run")
    assert summary["domains"] == ["common", "rare"]
    assert all(result["accuracy"] > 0.8 for result in summary["test"].values())


def test_held_out_clients_are_looked_at_every_few_rounds(tmp_path: Path, task: str):
    roles: dict[str, Any] = {"client": "who", "domain": "kind", "label": "y"}
    rows = {name: column for name, column in points().items() if name != "split"}
    source = from_frame(rows, **roles, test_fraction=0.3, heldout_fraction=0.3)
    write_store(source, tmp_path / "line.store")
    sets = ["evaluation_every=5", "metric='accuracy'", "clients_per_round=2"]
    summary = run(resolve(task, sets=sets), tmp_path / "run")
    looks = {r["round"]: r["heldout"] for r in read_records(tmp_path / "run") if "heldout" in r}
    assert list(looks) == [5, 10, 15, 20]
    assert looks[20] == summary["heldout"]  # 100 clients are all there are
    assert set(looks[5]["rare"]) == {"loss", "accuracy"}
    write_report([tmp_path / "run"], tmp_path / "report")
    assert (tmp_path / "report" / "plots" / "heldout.png").exists()


def test_without_held_out_clients_there_is_nothing_to_look_at(tmp_path: Path):
    with pytest.raises(
        BadInput, match="evaluation_every is 5, but the data has no split 'heldout'"
    ):
        run(resolve("toy", sets=["evaluation_every=5"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_store_names_the_command_that_makes_it(tmp_path: Path, task: str):
    with pytest.raises(
        BadInput, match=r"there is no store .*line.store; this makes it: agnosticfl"
    ):
        run(resolve(task), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_store_needs_a_test_split(tmp_path: Path):
    source = from_frame(points(), client="who", domain="kind", label="y", features=["a", "b"])
    write_store(source, tmp_path / "train-only")
    with pytest.raises(BadInput, match="has no split 'test'"):
        stored(str(tmp_path / "train-only"))


def test_a_store_says_what_was_not_learnt_from_its_training_rows(tmp_path: Path):
    rows = {
        "a": [0.5, 1.5, 2.5, 3.5],
        "who": ["k", "l", "m", "n"],
        "kind": ["x"] * 4,
        "y": [0, 1] * 2,
    }
    source = from_frame(rows, client="who", domain="kind", label="y", test_fraction=0.5)
    write_store(source, tmp_path / "learnt")
    assert stored(str(tmp_path / "learnt")).about.learnt == ("preparation",)
    agreed = from_frame(
        rows,
        client="who",
        domain="kind",
        label="y",
        test_fraction=0.5,
        like=tmp_path / "learnt" / "preparation.json",
    )
    write_store(agreed, tmp_path / "given")
    assert stored(str(tmp_path / "given")).about.learnt == ()
