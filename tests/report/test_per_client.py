# SPDX-License-Identifier: Apache-2.0
"""Values of single clients, and reports of the last model or the best one, of real runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.report import write_report
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kept")
    for seed in (0, 1):
        config = resolve(
            "synthetic-points", "afa", seed=seed, rounds=12, sets=["evaluation_every=3"]
        )
        run(config, place / f"afa-{seed}")
    return place


def test_there_is_a_row_for_each_run_client_and_domain(folder: Path, tmp_path: Path):
    file = tmp_path / "clients.parquet"
    write_report([folder], tmp_path / "report", per_client=file)
    rows = pyarrow.parquet.read_table(file).to_pylist()
    summary = json.loads((folder / "afa-0" / "summary.json").read_text())
    own = [row for row in rows if row["seed"] == 0]
    assert {row["seed"] for row in rows} == {0, 1}
    assert {row["algorithm"] for row in rows} == {"AFA"}
    assert len({(row["client"], row["domain"]) for row in own}) == len(own)
    for domain, values in summary["test"].items():
        clients = [row for row in own if row["domain"] == domain]
        assert len(clients) == summary["clients_with"]["test"][domain]
        examples = np.array([row["examples"] for row in clients])
        assert examples.sum() == summary["examples"]["test"][domain]
        for metric, value in values.items():
            mean = np.dot(examples, [row[metric] for row in clients]) / examples.sum()
            assert mean == pytest.approx(value, rel=1e-5)
    write_report([folder], tmp_path / "report", per_client=tmp_path / "clients.csv")
    assert pyarrow.csv.read_csv(tmp_path / "clients.csv").num_rows == len(rows)


def test_a_file_of_no_known_kind_and_runs_that_kept_nothing_are_refused(
    folder: Path, tmp_path: Path
):
    with pytest.raises(BadInput, match=r"clients\.txt must end in \.parquet or \.csv"):
        write_report([folder], tmp_path / "report", per_client=tmp_path / "clients.txt")
    assert not (tmp_path / "report").exists()
    old = tmp_path / "old"
    shutil.copytree(folder / "afa-0", old)
    shutil.rmtree(old / "predictions")
    with pytest.raises(BadInput, match="old kept no predictions"):
        write_report([old], tmp_path / "report", per_client=tmp_path / "clients.csv")
    assert not (tmp_path / "clients.csv").exists()


def test_the_best_model_is_reported_if_asked_for(folder: Path, tmp_path: Path):
    summaries = [json.loads((folder / f"afa-{s}" / "summary.json").read_text()) for s in (0, 1)]
    for which, own in (("last", summaries), ("best", [s["best"] for s in summaries])):
        write_report([folder], tmp_path / which, which)
        written = json.loads((tmp_path / which / "comparison.json").read_text())
        (row,) = written["algorithms"]
        assert written["which"] == which
        for domain, cell in row["test"]["loss"].items():
            assert cell["values"] == [s["test"][domain]["loss"] for s in own]
            assert cell["interval"][0] < cell["mean"] < cell["interval"][1]
    rounds = [s["best"]["round"] for s in summaries]
    assert row["rounds"] == rounds
    caption = (tmp_path / "best" / "table.md").read_text().splitlines()[0]
    assert "of the model that served its worst held-out domain best (from round" in caption
    assert str(max(rounds)) in caption


def test_a_run_without_a_best_model_is_refused(folder: Path, tmp_path: Path):
    old = tmp_path / "old"
    shutil.copytree(folder / "afa-0", old)
    summary = json.loads((old / "summary.json").read_text())
    del summary["best"]
    (old / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(BadInput, match="has no best model: that needs looks at held-out clients"):
        write_report([old], tmp_path / "report", "best")
    with pytest.raises(BadInput, match="'bets'; did you mean 'best'"):
        write_report([old], tmp_path / "report", "bets")


def test_a_folder_of_version_0_1_can_be_reported(folder: Path, tmp_path: Path):
    old = tmp_path / "old"
    shutil.copytree(folder / "afa-0", old)
    shutil.rmtree(old / "predictions")
    summary = json.loads((old / "summary.json").read_text())
    for key in ("best", "classes", "clients_with"):
        summary.pop(key, None)
    (old / "summary.json").write_text(json.dumps(summary))
    write_report([old], tmp_path / "report")
    assert (
        "No interval: 1 of 1 runs kept no predictions."
        in (tmp_path / "report" / "table.md").read_text()
    )
