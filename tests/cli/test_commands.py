# SPDX-License-Identifier: Apache-2.0
"""The program as a user meets it: real processes where it is stopped, and its own words."""

import json
import signal
from pathlib import Path

import pytest

from agnosticfl.runs.records import read_records
from tests.helpers.command_line import agnosticfl, called, start, wait_for_round
from tests.helpers.runs import results

TOY = ("run", "toy", "--rounds", "400", "--set", "checkpoint_every=20")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "whole"
    done = called(*TOY, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_run_prints_the_table_and_writes_the_report(uninterrupted: Path):
    names = {path.name for path in uninterrupted.iterdir()}
    assert {"report.html", "table.md", "table.tex", "comparison.json", "plots"} <= names
    assert {p.name for p in (uninterrupted / "plots").iterdir()} >= {"value.png", "weights.png"}


def test_killed_anywhere_and_resumed_gives_the_same_bits(tmp_path: Path, uninterrupted: Path):
    """SIGKILL at three moments of one run, each time resumed with the same command."""
    folder = tmp_path / "killed"
    for t in (3, 110, 301):
        process = start(*TOY, "--out", folder, "--resume")
        wait_for_round(process, folder, t)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = called(*TOY, "--out", folder, "--resume")
    assert done.returncode == 0, done.stderr
    assert results(folder) == results(uninterrupted)
    one, other = (json.loads((f / "summary.json").read_text()) for f in (folder, uninterrupted))
    assert (one["params"], one["test"]) == (other["params"], other["test"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals):
    folder = tmp_path / "stopped"
    process = start("run", "toy", "--rounds", "100000", "--out", folder)
    wait_for_round(process, folder, 10)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "add --resume to the same command to go on" in errors
    saved = max(int(p.name) for p in (folder / "checkpoints").iterdir())
    assert saved == read_records(folder)[-1]["round"]


def test_asked_twice_it_stops_at_once_and_can_still_go_on(tmp_path: Path):
    folder = tmp_path / "stopped"
    words = ("run", "toy", "--rounds", "3000", "--set", "checkpoint_every=1", "--out", folder)
    process = start(*words)
    wait_for_round(process, folder, 3)
    for _ in range(2):  # the second one in the middle of what the first one asked for
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].endswith("add --resume to the same command to go on")
    for words_of_a_library in ("Traceback", "Event loop", "Exception"):
        assert words_of_a_library not in errors
    assert called(*words, "--resume").returncode == 0


def test_compare_makes_the_paper_s_table_and_report_makes_it_again(tmp_path: Path):
    folder = tmp_path / "compared"
    words = ("compare", "toy", "--seeds", "2", "--rounds", "30", "--out", folder)
    done = called(*words)
    assert done.returncode == 0, done.stderr
    table = (folder / "table.md").read_text()
    assert [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")][2:5] == [
        "| FedAvg (uniform)",
        "| FedAvg (centre -1)",  # the domain that FedAvg serves worst
        "| AFA",
    ]
    assert "mean (standard deviation) of 2 seeds" in table
    comparison = json.loads((folder / "comparison.json").read_text())
    assert [a["seeds"] for a in comparison["algorithms"]] == [[0, 1]] * 3
    before = (folder / "report.html").read_bytes()
    assert called("report", folder).returncode == 0
    assert (folder / "report.html").read_bytes() == before
    again = called(*words, "--resume")
    assert again.returncode == 0
    assert again.stderr.count("is complete already") == 6


def test_the_best_model_and_the_values_of_single_clients_on_request(tmp_path: Path):
    folder, file = tmp_path / "run", tmp_path / "clients.csv"
    words = ("run", "synthetic-points", "--rounds", "6", "--set", "evaluation_every=2")
    done = called(*words, "--which", "best", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "of the model that served its worst held-out domain best" in " ".join(
        done.stdout.split()
    )
    assert json.loads((folder / "comparison.json").read_text())["which"] == "best"
    done = called("report", folder, "--per-client", file)
    assert done.returncode == 0, done.stderr
    assert file.read_text().startswith('"algorithm","seed","client","domain","examples","')
    assert json.loads((folder / "comparison.json").read_text())["which"] == "last"


def test_references_writes_a_task_that_excess_risk_runs(tmp_path: Path):
    small = ("--set", "engine=padded", "--set", "clients_per_round=10")  # soon compiled
    done = called("references", "toy", "--rounds", "2", *small, "--out", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    assert "centre -0.5: " in done.stdout
    task = tmp_path / "found" / "toy.toml"
    assert f"the task with them: {task}" in done.stdout
    words = ("run", task, "--algorithm", "excess-risk", "--rounds", "2", "--set", "mean_model=true")
    done = called(*words, "--which", "mean", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "of the mean of the models of all rounds" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "toi"), "unknown task 'toi'; did you mean 'toy'?"),
        (
            ("run", "toy", "--algorithm", "fedavg-target", "--target", "centre"),
            "unknown domain 'centre'; did you mean 'centre 1'? (allowed: centre -1, centre -0.5, ",
        ),
        (("run", "toy", "--set", "window_sise=3"), "'window_sise'; did you mean 'window_size'?"),
        (("run", "toy", "--set", "model.begin=3"), "unknown option of model 'point' 'begin' ("),
        (
            ("run", "adult"),
            "there is no store stores/adult; this makes it: agnosticfl data prepare adult FOLDER",
        ),
        (
            ("run", "toy", "--set", "model={name='logistic', features=1, classes=2}"),
            "train data for model 'logistic': there is no feature 'y' (but x); needed: a whole",
        ),
        (
            ("run", "toy", "--set", "weight_rule.learning_rate=-1"),
            "it must be a number of at least 0",
        ),
        (
            ("run", "toy", "--algorithm", "fedavg", "--set", "weight_rule.learning_rate=1"),
            "--set weight_rule.learning_rate=1 has no effect on 'fedavg'",
        ),
        (("compare", "toy", "--target", "nobody"), "unknown domain 'nobody'"),
        (("compare", "toy", "--seeds", "0"), "number of seeds is 0; it must be at least 1"),
        (("run", "toy", "--track", "tensorbord"), "unknown tracker 'tensorbord'"),
        (("run", "toy", "--secure", "on"), "name of secure is 'on'; it must be 'simulate'"),
        (
            ("run", "toy", "--secure", "simulate", "--set", "secure.loss=0"),
            "loss of secure is 0; it must be a number above 0",
        ),
        (("report", "nowhere"), "nowhere is not a folder"),
        (("run", "toy", "--which", "bets"), "unknown --which 'bets'; did you mean 'best'?"),
        (("compare", "toy", "--which", "best"), "--which best needs looks at held-out clients"),
        (("run", "toy", "--which", "mean"), "--which mean needs --set mean_model=true"),
        (("report", ".", "--per-client", "a.xls"), "a.xls must end in .parquet or .csv"),
        (("run", "toy", "--coordinator", "here:1"), "--process-id go together: give all three"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
):
    monkeypatch.chdir(tmp_path)
    done = called(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_process_ends_with_the_same_line_and_status():
    """What the tests above see within this process is what the system sees of one."""
    for words in (("run", "toi"), ("--version",)):
        process, here = agnosticfl(*words), called(*words)
        for name in ("returncode", "stdout", "stderr"):
            assert getattr(process, name) == getattr(here, name)
    assert called("run", "toi").returncode == 2


def test_secure_simulate_gives_the_clear_run_s_numbers_and_counts_clipping(
    tmp_path: Path, uninterrupted: Path
):
    bounds = ("--secure", "simulate", "--set", "secure.loss=15")
    done = called("run", "toy", "--rounds", "50", *bounds, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["secure"] == {
        "name": "simulate",
        "loss": 15,
    }
    secure, clear = read_records(tmp_path / "run"), read_records(uninterrupted)
    # From w = 3, points around −1 have a loss of 16 and more: the first rounds are clipped.
    clipped = [record["clients_clipped"] for record in secure]
    assert clipped[0] > 0
    assert clipped[-1] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["clients_clipped"] == sum(clipped)
    assert secure[0]["params"] == pytest.approx(clear[0]["params"], rel=1e-5)
    assert secure[-1]["params"] == pytest.approx(clear[49]["params"], abs=0.02)
    assert secure[0]["count"] == clear[0]["count"]


def test_tasks_and_help():
    assert "toy" in called("tasks").stdout
    assert "compare" in called("--help").stdout
    assert called("--version").stdout.startswith("agnosticfl 0.")
    assert called("run", "toy", "--no-such-option").returncode == 2
