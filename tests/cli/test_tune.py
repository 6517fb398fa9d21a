# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl tune` as a user meets it: one line for bad input, real signals, files that run."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.helpers.command_line import agnosticfl, called, start

RATE = "client_optimizer.learning_rate"
SMALL = (
    "--set", "data.clients=60", "--set", "data.examples=20", "--set", "data.heldout_fraction=0.3",
    "--set", "engine='padded'", "--set", "evaluation_every=4", "--rounds", "40",
)  # fmt: skip
SEARCH = (
    "tune",
    "synthetic-points",
    *SMALL,
    "--algorithms",
    "afa",
    "--seeds",
    "2",
    "--budget",
    "4",
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("toy",), "the data of task 'toy' has no split 'heldout' to search on"),
        (("synthetic-points", "--algorithms", "aff"), "unknown algorithm 'aff'"),
        (("synthetic-points", "--keys", f"{RATE}="), "a value is missing after = or a comma"),
        (("synthetic-points", "--keys", f"{RATE}=0.1,fast"), "is 'fast'; it must be a number"),
        (("synthetic-points", "--keys", "client_optimizer.rate=1,2"), "'rate'"),
        (("synthetic-points", "--budget", "2"), "the first grid of fedavg has 3 settings"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
):
    monkeypatch.chdir(tmp_path)
    done = called("tune", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def wait_for_trials(process: subprocess.Popen[str], folder: Path, number: int) -> None:
    """Waits until so many trials have begun and the newest has written down a round."""
    deadline = time.monotonic() + 240
    while len([p for p in folder.glob("trials/*/metrics.jsonl") if p.read_text()]) < number:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_and_interrupted_it_goes_on_to_the_same_table_and_task(tmp_path: Path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = agnosticfl(*SEARCH, "--out", whole)
    assert done.returncode == 0, done.stderr
    assert "the task with what was found" in done.stdout
    process = start(*SEARCH, "--out", broken)
    wait_for_trials(process, broken, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start(*SEARCH, "--out", broken)
    wait_for_trials(process, broken, 4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "of 40; the same command goes on" in errors
    assert "Traceback" not in errors
    again = agnosticfl(*SEARCH, "--out", broken)
    assert again.returncode == 0, again.stderr
    for name in ("table.md", "trials.json", "synthetic-points.toml"):
        assert (broken / name).read_text() == (whole / name).read_text()
    shown = agnosticfl("show", whole / "synthetic-points.toml")
    assert shown.returncode == 0
    assert f"{RATE}" in shown.stdout
    refused = agnosticfl("report", next((whole / "trials").iterdir()))
    assert refused.returncode == 2
    assert "is a trial of a search: test is not measured" in refused.stderr
