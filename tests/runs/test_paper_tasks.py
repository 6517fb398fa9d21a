# SPDX-License-Identifier: Apache-2.0
"""The paper's public tasks, from files of the downloads' format to a trained round.

The commands are those that the tasks name; only sizes are smaller.
"""

import shlex
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from agnosticfl.cli.commands import app
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.data.image_files import write_sqlite
from tests.data.stackoverflow_files import POSTS, write_fedjax


def prepare(task: str) -> None:
    """Runs the second command of the task's `made_by`, in which the shell would expand a `*`."""
    _, command = resolve(task).data["made_by"].split("&&")
    words = [
        str(found)
        for word in shlex.split(command)[1:]
        for found in (Path().glob(word) if "*" in word else [word])
    ]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_emnist_from_fedjax_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("downloads").mkdir()
    for split in ("train", "test"):
        write_sqlite(Path(f"downloads/federated_emnist_{split}.sqlite"))
    prepare("emnist")
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam needs it
        summary = run(resolve("emnist", rounds=1, sets=["clients_per_round=2"]), tmp_path / "run")
    assert set(summary["domains"]) == {"high school", "census"}
    assert all(values["accuracy"] is not None for values in summary["test"].values())


@pytest.mark.slow
def test_stack_overflow_from_fedjax_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("downloads").mkdir()
    for split in ("train", "held_out", "test"):
        write_fedjax(Path(f"downloads/stackoverflow_{split}.sqlite"), {f"{split}{c}": p for c, p
                     in POSTS.items()})  # fmt: skip
    words = ["use", "sorted", "how", "list"]
    Path("downloads/stackoverflow.word_count").write_text("".join(f"{w} 9\n" for w in words))
    prepare("stackoverflow")
    sets = [f"model.words={len(words)}", "model.hidden=4", "model.embedding=3",
            "clients_per_round=2", "evaluation_every=1"]  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):
        summary = run(resolve("stackoverflow", rounds=1, sets=sets), tmp_path / "run")
    assert set(summary["domains"]) == {"question", "answer"}
    for split in ("heldout", "test"):
        assert all(values["perplexity"] is not None for values in summary[split].values())
