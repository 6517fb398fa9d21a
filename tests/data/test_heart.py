# SPDX-License-Identifier: Apache-2.0
"""Four hospitals' raw files, as they are published, in one command and without code."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer.main

from agnosticfl.cli.data import data_app
from agnosticfl.data.store import check_store, open_store
from tests.data.real import real_data

OPTIONS = (
    "--names age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
    " --domain @file --client @file --split-by rows --categories cp,restecg,slope,thal"
    " --label num --classes '>0' --test-fraction 0.3 --heldout-fraction 0.15"
)
# Rows of each hospital, and how many of them have a heart disease (num > 0), counted with awk.
ROWS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
SICK = {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}


def prepare(out: Path) -> Path:
    files = sorted(real_data("heart_disease").glob("processed.*.data"))
    call(["prepare", "arrays", *map(str, files), *shlex.split(OPTIONS), "--out", str(out)])
    return out


def call(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        typer.main.get_command(data_app)(words, prog_name="data")
    assert ended.value.code == 0


def test_four_raw_files_are_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = prepare(tmp_path / "heart")
    assert "'switzerland' (18)" in capsys.readouterr().err  # few rows are held out
    assert check_store(store) == []
    opened = open_store(store)
    assert opened.meta.domains == tuple(ROWS)
    assert opened.meta.labels == ("num <= 0", "num > 0")
    steps = opened.preparation()
    assert steps is not None
    for name in ("cp=4", "thal=3", "thal=(missing)", "ca is missing"):
        assert name in steps.x_columns
    assert len([name for name in steps.x_columns if name.startswith("cp=")]) == 4  # 1.0 is 1
    call(["info", str(store), "--json"])
    info = json.loads(capsys.readouterr().out)
    assert (info["number_of_features"], info["number_of_classes"]) == (32, 2)
    for split, share in (("train", 0.55), ("heldout", 0.15), ("test", 0.3)):
        for name, domain in info["splits"][split]["domains"].items():
            np.testing.assert_allclose(domain["examples"], share * ROWS[name], atol=1.01)
            np.testing.assert_allclose(domain["classes"][1], share * SICK[name], atol=2)


def test_training_numbers_are_scaled_and_known_where_they_are_not_missing(tmp_path: Path) -> None:
    opened = open_store(prepare(tmp_path / "heart"))
    steps = opened.preparation()
    assert steps is not None
    x = opened.splits["train"].examples["x"]
    columns = dict(zip(steps.x_columns, x.T, strict=True))
    np.testing.assert_allclose([columns["age"].mean(), columns["age"].std()], [0, 1], atol=1e-5)
    known = columns["chol"][columns["chol is missing"] == 0]
    np.testing.assert_allclose([known.mean(), known.std()], [0, 1], atol=1e-5)
    assert not columns["chol"][columns["chol is missing"] == 1].any()
