# SPDX-License-Identifier: Apache-2.0
"""`init`, `export` and `predict` as a user meets them: files out, one line for bad input."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from agnosticfl.cli.commands import app
from agnosticfl.errors import BadInput
from tests.helpers.stores import patients, trained

INPUTS = ["age", "dose", "kind"]


def invoke(*words: str | Path) -> str:
    """What a command prints; bad input is raised, as `main` gets it."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store `classes`, a run on it, and the exported model `m`."""
    place = tmp_path_factory.mktemp("cli")
    model = {"name": "logistic", "features": 6, "classes": 2, "metrics": ["accuracy", "auroc"]}
    run = trained(place, "classes", model, "accuracy")
    said = invoke("export", run, "--out", place / "m")
    assert f"the best model of {run}, of round" in said
    return place


def test_init_writes_a_task_that_compare_takes(folder: Path, tmp_path: Path):
    said = invoke("init", folder / "classes", "--out", tmp_path / "my.toml")
    assert f"agnosticfl compare {tmp_path / 'my.toml'} --algorithms fedavg,afa" in said
    options = ("--algorithms", "afa", "--seeds", "1", "--rounds", "2", "--out", tmp_path / "c")
    invoke("compare", tmp_path / "my.toml", *options)
    assert (tmp_path / "c" / "afa-seed0" / "summary.json").exists()
    for words, problem in {
        ("--out", tmp_path / "my.toml"): "exists; --overwrite replaces it",
        ("--out", tmp_path / "my.txt"): "must end in .toml",
        (
            "--out",
            tmp_path / "b.toml",
            "--model",
            "lstm",
        ): r"unknown model .*allowed: logistic, mlp",
    }.items():
        with pytest.raises(BadInput, match=problem):
            invoke("init", folder / "classes", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "my.toml"]


def test_data_info_names_the_models_that_fit(folder: Path):
    assert "built-in models that fit: logistic, mlp" in invoke("data", "info", folder / "classes")
    found = json.loads(invoke("data", "info", folder / "classes", "--json"))
    assert found["models"]["logistic"]["features"] == 6


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_predictions_for_a_table(folder: Path, tmp_path: Path, ending: str):
    table = patients()
    table[[*INPUTS, "patient"]].to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / f"p{ending}"
    said = invoke("predict", folder / "m", tmp_path / "new.csv", "--out", out, "--keep", "patient")
    assert said == f"{out}: 120 predictions\n"
    if ending == ".csv":
        with out.open() as file:
            rows = list(csv.DictReader(file))
        assert [row["patient"] for row in rows] == table["patient"].tolist()
        found = np.array([row["prediction"] for row in rows])
    else:
        read = pq.read_table(out).to_pydict()
        assert list(read) == [
            "row", "patient", "prediction", "probability", "probability of no", "probability of yes"
        ]  # fmt: skip
        assert read["row"] == list(range(120))
        found = np.array(read["prediction"])
    best = json.loads((folder / "runs" / "logistic" / "summary.json").read_text())["best"]
    test = (table["part"] == "test").to_numpy()
    assert np.mean((found == table["ill"].to_numpy())[test]) == best["overall"]["test"]["accuracy"]


def test_a_file_without_a_header_and_another_delimiter(folder: Path, tmp_path: Path):
    (tmp_path / "new.txt").write_text("61.5;0.3;a\n?;-0.2;zebra\n")
    options = ("--names", "age,dose,kind", "--delimiter", ";", "--out", tmp_path / "p.csv")
    said = invoke("predict", folder / "m", tmp_path / "new.txt", *options)
    assert "warning: column 'kind': 1 row has the unknown category 'zebra'" in said


def test_predictions_for_a_store_have_the_figures_of_the_report(folder: Path, tmp_path: Path):
    out = tmp_path / "p.parquet"
    said = invoke("predict", folder / "m", folder / "classes", "--split", "heldout", "--out", out)
    best = json.loads((folder / "runs" / "logistic" / "summary.json").read_text())["best"]
    for values in best["heldout"].values():
        assert f"{values['auroc']:.6g}" in said
    assert set(pq.read_table(out)["domain"].to_pylist()) == {"city", "village"}


def test_bad_input_gets_one_line_and_no_file(folder: Path, tmp_path: Path):
    model, out = folder / "m", tmp_path / "p.csv"
    patients()[["age", "dose"]].to_csv(tmp_path / "less.csv", index=False)
    (tmp_path / "text.csv").write_text("age,dose,kind\n1,2,a\nold,3,b\n")
    (tmp_path / "empty.csv").write_text("age,dose,kind\n")
    (tmp_path / "taken.csv").write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    new, store = tmp_path / "less.csv", folder / "classes"
    for words, problem in {
        (model, new, "--out", out): r"unknown column of .*less.csv 'kind' \(allowed: age, dose\)",
        (model, tmp_path / "text.csv", "--out", out): r"text.csv, row 1: column 'age' has 'old'",
        (model, tmp_path / "empty.csv", "--out", out): "there are no rows to predict",
        (model, tmp_path / "no.csv", "--out", out): "no.csv does not exist or is no file",
        (model, new, "--out", tmp_path / "p.txt"): r"unknown ending .*'.txt' \(allowed: .parquet, ",
        (model, new, "--out", tmp_path / "no" / "p.csv"): "the folder of .* does not exist",
        (model, new, "--out", tmp_path / "taken.csv"): "exists; --overwrite replaces it",
        (model, new, "--out", out, "--split", "test"): "--split is for a store",
        (model, store, "--out", out, "--split", "tset"): r"unknown split of .* did you mean 'test'",
        (model, store, "--out", out, "--keep", "age"): "--keep is for a table",
        (store, new, "--out", out): "is no exported model: there is no manifest.json in it",
        (tmp_path / "nowhere", new, "--out", out): "is no exported model",
    }.items():
        with pytest.raises(BadInput, match=problem):
            invoke("predict", *words)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert (tmp_path / "taken.csv").read_text() == "mine"


def test_a_run_that_never_looked_at_held_out_clients_gives_its_last_model(tmp_path: Path):
    sets = ["--rounds", "2", "--set", "evaluation_every=0"]
    invoke("run", "toy", *sets, "--out", tmp_path / "run")
    said = invoke("export", tmp_path / "run", "--out", tmp_path / "m")
    assert said.endswith(f"the last model of {tmp_path / 'run'}, of round 2\n")
