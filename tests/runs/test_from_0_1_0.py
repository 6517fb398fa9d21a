# SPDX-License-Identifier: Apache-2.0
"""What version 0.1.0 wrote opens, or is refused with a line that says what to do (CHANGELOG)."""

import shutil
from pathlib import Path

from agnosticfl.data.store import open_store
from tests.helpers.command_line import called

OLD = Path(__file__).parent / "from_0_1_0"


def test_a_store_opens_and_is_sound():
    done = called("data", "check", OLD / "store")
    assert done.returncode == 0, done.stderr
    splits = open_store(OLD / "store").splits
    assert sum(len(split.domain) for split in splits.values()) == 60
    assert list(splits["train"].domains) == ["coast", "north"]


def test_a_finished_run_is_reported_without_intervals(tmp_path: Path):
    done = called("report", OLD / "finished", "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    assert "kept no predictions" in " ".join(done.stdout.split())
    assert (tmp_path / "report" / "report.html").exists()


def test_a_finished_run_cannot_be_exported(tmp_path: Path):
    done = called("export", OLD / "finished", "--out", tmp_path / "model")
    assert done.returncode == 2
    assert "a run of an older version; train again" in done.stderr


def test_an_interrupted_run_is_refused_and_begun_anew_only_if_it_is_asked_for(tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(OLD / "interrupted", run)
    words = ("run", "synthetic-images", "--algorithm", "afa", "--rounds", "40", "--out", run)
    done = called(*words, "--resume")
    assert done.returncode == 2
    assert "was written by an older version of agnosticfl" in done.stderr
    assert "--overwrite" in done.stderr
    kept = (OLD / "interrupted" / "metrics.jsonl").read_text()
    assert (run / "metrics.jsonl").read_text() == kept
