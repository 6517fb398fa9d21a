# SPDX-License-Identifier: Apache-2.0
"""A store as the data of a task, from the command that makes it to a trained model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.config import resolve
from agnosticfl.data import stored
from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.store import write_store
from agnosticfl.errors import BadInput
from agnosticfl.experiment import run

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
