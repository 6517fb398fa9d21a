# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md, done as it says: on the real table where it is there, else on one like it."""

import contextlib
import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.real import FOLDER
from tests.helpers.command_line import called, printed_by

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
SHELL = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = SHELL.replace("\\\n", " ").splitlines()
ROUNDS = 30  # instead of the task's 300
HOSPITALS = {"cleveland": 150, "hungarian": 140, "switzerland": 60, "va": 100}


def synthetic(folder: Path) -> None:
    """Four files of the same form as the real ones, with invented patients."""
    rng = np.random.default_rng(0)
    for hospital, rows in HOSPITALS.items():
        with (folder / f"processed.{hospital}.data").open("w") as file:
            for _ in range(rows):
                ill = int(rng.integers(0, 5) * (rng.random() < 0.6))
                numbers = [rng.integers(30, 75), rng.integers(0, 2), rng.integers(1, 5)]
                numbers += [rng.integers(100, 170), rng.integers(150, 300) + 20 * ill]
                numbers += [rng.integers(0, 2), rng.integers(0, 3), 180 - 10 * ill]
                numbers += [rng.integers(0, 2), ill / 2, rng.integers(1, 4), rng.integers(0, 4)]
                texts = [str(n) if rng.random() > 0.1 else "?" for n in numbers]
                file.write(",".join([*texts, str(rng.choice([3, 6, 7])), str(ill)]) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands of the page were run, one after another."""
    place = tmp_path_factory.mktemp("tutorial")
    real = FOLDER / "heart_disease"
    if not real.is_dir():
        synthetic(place)
    else:
        for file in real.glob("processed.*.data"):
            shutil.copyfile(file, place / file.name)
    (new,) = re.findall(r"```\n(age,sex,cp.*?)```", PAGE, re.DOTALL)
    (place / "new_patients.csv").write_text(new)
    for line in COMMANDS:
        program, *words = shlex.split(line)
        assert program == "agnosticfl"
        if words[0] in ("tune", "compare"):  # so that a test takes seconds; the rest as it is
            words += ["--rounds", str(ROUNDS)]
        files = [str(f.name) for f in sorted(place.glob("processed.*.data"))]
        words = [w for word in words for w in (files if word == "processed.*.data" else [word])]
        with contextlib.chdir(place):
            done = called(*words)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    return place


def test_the_way_takes_at_most_eight_commands():
    assert 5 <= len(COMMANDS) <= 8


def test_new_patients_get_a_prediction_each(folder: Path):
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["age"] for row in rows] == ["58", "41", "63"]
    for row in rows:
        assert row["prediction"] in ("num <= 0", "num > 0")
        likely = float(row[f"probability of {row['prediction']}"])
        assert likely == float(row["probability"]) >= 0.5


def test_the_model_is_the_one_of_the_report_to_the_last_digit(folder: Path):
    done = called(
        "predict", folder / "heart-model", folder / "heart", "--out", folder / "test.parquet"
    )
    assert done.returncode == 0, done.stderr
    said = pq.read_table(folder / "test.parquet").to_pydict()
    best = json.loads((folder / "compared" / "afa-seed0" / "summary.json").read_text())["best"]
    for domain, values in best["test"].items():
        # The label is not in the file: what the report says of the same predictions is.
        assert f"{values['accuracy']:.6g}" in done.stdout
        assert domain in said["domain"]
    card = (folder / "heart-model" / "README.md").read_text()
    assert f"after round {best['round']} of {ROUNDS}" in card


def test_the_page_promises_what_the_report_has(folder: Path):
    assert {"report.html", "table.md", "comparison.json"} <= {
        path.name for path in (folder / "compared").iterdir()
    }
    table = (folder / "compared" / "table.md").read_text()
    assert re.match(r"heart: test \w+, mean \(standard deviation\) of 3 seeds, \[95 % int", table)
    for hospital in HOSPITALS:
        assert hospital in table


def test_the_same_from_python_in_under_forty_lines(folder: Path, tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) < 40
    for file in (*folder.glob("processed.*.data"), folder / "new_patients.csv"):
        shutil.copyfile(file, tmp_path / file.name)
    # Fewer rounds and seeds, so that a test takes seconds; everything else as it stands there.
    code = code.replace('"rounds": 300', f'"rounds": {ROUNDS}, "seeds": 1')
    code = code.replace('"evaluation_every": 15', '"evaluation_every": 3')
    printed = printed_by(code, tmp_path)
    assert len(re.findall(r"'num [<>]=? 0'", printed)) == 3
    assert (tmp_path / "compared" / "report.html").exists()
