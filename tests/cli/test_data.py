# SPDX-License-Identifier: Apache-2.0
"""The data commands as a user types them."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer.main

from agnosticfl.cli.data import data_app
from agnosticfl.data.store.reader import open_store
from agnosticfl.errors import one_line_errors
from agnosticfl.registry import LOADERS
from tests.helpers.command_line import command

CSV = "who,land,age,kind\nbo,us,1,dog\nal,ar,2,cat\nbo,ar,3,cat\n"


class Result(NamedTuple):
    """What a command printed, and its exit status."""

    status: Any
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Calls `data …` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(CSV)
    app = typer.main.get_command(data_app)

    def run(line: str) -> Result:
        with pytest.raises(SystemExit) as ended, one_line_errors():
            app(line.split(), prog_name="data")
        shown = capsys.readouterr()
        return Result(ended.value.code, shown.out, shown.err)

    return run


PREPARE = "prepare arrays rows.csv --client who --domain land --label kind --out s"


def test_a_process_that_made_a_store_ends_without_a_word(call: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        command("data", *PREPARE.split()), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == call(PREPARE.replace("--out s", "--out t")).err.splitlines()


def test_prepare_info_check(call: Any, tmp_path: Path) -> None:
    made = call(PREPARE)
    assert made.status == 0
    assert made.err == (
        "warning: train has no or very few rows (under 30) of the domain 'ar' (2), 'us' (1):"
        " little can be learnt about it; bring more rows, or merge small domains\n"
    )
    assert made.out == "s: train has 3 examples of 2 clients\n"
    assert open_store(tmp_path / "s").meta.labels == ("cat", "dog")
    assert call("check s").out == "s: sound\n"
    shown = call("info s --plot s.png")
    assert shown.status == 0
    assert "rows.csv (licence: unknown)" in shown.out
    assert "train: 1 clients have several domains" in shown.out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    for line in (
        "feature x: float32 [1]",
        "number of features: 1",
        "column age: number, (v − 2) / 0.816497",
        "label kind: 2 classes: cat, dog",
        "note: train has no or very few rows",
    ):
        assert line in shown.out
    assert "│ ar     │   2 │   0 │" in shown.out  # of cats and dogs


def test_info_for_programs(call: Any) -> None:
    call("prepare synthetic --kind sentences --clients 30 --test-fraction 0 --out s")
    info = json.loads(call("info s --json").out)
    assert info["licence"] == "CC0-1.0"
    assert info["features"] == {"tokens": {"dtype": "int16", "shape": [20]}}
    train = info["splits"]["train"]
    assert train["clients"] == 30
    assert train["several_domains"] == 0  # the domain belongs to the client
    assert sum(domain["clients"] for domain in train["domains"].values()) == 30
    assert sum(domain["examples"] for domain in train["domains"].values()) == train["examples"]
    assert list(train["size_quantiles"]) == ["0", "0.25", "0.5", "0.75", "0.95", "1"]


def test_info_on_a_number_to_predict(call: Any, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("who,land,age,pay\na,[u],1,2.5\nb,[u],2,3.5\nc,v,?,7\n")
    made = call("prepare arrays n.csv --client who --domain land --label pay --out s")
    assert made.status == 0
    info = json.loads(call("info s --json").out)
    assert info["number_of_classes"] is None
    assert info["columns"] == ["age", "age is missing"]
    domains = info["splits"]["train"]["domains"]
    assert domains["[u]"]["target"] == {"mean": 3, "deviation": 0.5, "least": 2.5, "largest": 3.5}
    assert domains["v"]["target"] == {"mean": 7, "deviation": 0, "least": 7, "largest": 7}
    shown = call("info s").out
    assert "label pay: a number" in shown
    assert "│ [u]    │    3 │       0.5 │   2.5 │     3.5 │" in shown
    assert "column age: number, (v − 1.5) / 0.5, 1.5 where it is missing" in shown


def test_info_stays_readable_with_many_columns_and_classes(call: Any, tmp_path: Path) -> None:
    names = [f"v{i}" for i in range(40)]
    rows = [",".join(["a", "u", *["1"] * 40, f"c{k}"]) for k in (0, 0, 0, 1, 2, 3, 4, 5, 6, 7)]
    text = "\n".join([",".join(["who", "land", *names, "kind"]), *rows])
    (tmp_path / "wide.csv").write_text(text + "\n")
    call("prepare arrays wide.csv --client who --domain land --label kind --out s")
    shown = call("info s").out
    assert "column v29:" in shown
    assert "column v30:" not in shown
    assert "… and 10 more columns (all of them: --json)" in shown
    assert "│ u      │       8 │   30.0% │    10.0% │" in shown  # classes, largest, smallest
    assert len(json.loads(call("info s --json").out)["columns"]) == 40


def test_a_domain_without_test_rows_is_said_by_prepare_and_by_info(call: Any, tmp_path: Path):
    rows = [f"{d}{k},{d},{k}" for d, n in (("a", 90), ("b", 1)) for k in range(n)]
    (tmp_path / "few.csv").write_text("\n".join(["who,land,v", *rows, ""]))
    made = call("prepare arrays few.csv --client who --domain land --test-fraction 0.5 --out s")
    assert made.status == 0
    said = "test has no or very few rows (under 30) of the domain 'b' (0): what is measured there"
    assert f"warning: {said}" in made.err
    assert f"note: {said}" in call("info s").out
    assert any(note.startswith(said) for note in json.loads(call("info s --json").out)["notes"])


def test_a_refused_table_leaves_nothing(call: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("who,land,age\n" + "a,u,1\n" * 9999 + "a,u,1e99\n")
    result = call("prepare arrays bad.csv --client who --domain land --out s")
    assert result.status == 2
    assert result.err.startswith("error: bad.csv, row 9999: column 'age' has 1e+99, which is no")
    assert result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "rows.csv"]


def test_info_counts_words_not_padding(call: Any, tmp_path: Path) -> None:
    call("prepare synthetic --kind sentences --clients 30 --test-fraction 0 --out s")
    tokens = open_store(tmp_path / "s").splits["train"].examples["tokens"]
    info = json.loads(call("info s --json").out)
    counted = sum(d["tokens"] for d in info["splits"]["train"]["domains"].values())
    assert counted == (tokens > 2).sum()


def test_mistakes_are_one_line_and_status_2(call: Any, tmp_path: Path) -> None:
    call(PREPARE)
    for line, message in [
        (PREPARE, "exists"),
        (PREPARE.replace("who", "whom").replace("out s", "out t"), "did you mean 'who'"),
        (PREPARE.replace("rows.csv", "no.csv").replace("out s", "out t"), "no.csv does not exist"),
        ("info rows.csv", "rows.csv is no store"),
        ("check nowhere", "nowhere is no store"),
        ("prepare synthetic rows.csv --out t", "made from nothing"),
    ]:
        result = call(line)
        assert result.status == 2, line
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
        assert message in result.err
        assert result.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "s"]
    assert call(PREPARE + " --overwrite").status == 0


def test_check_names_every_problem(call: Any, tmp_path: Path) -> None:
    call(PREPARE)
    file = tmp_path / "s" / "train" / "examples.arrow"
    ages = np.array(
        [0, -(1.5**0.5), 1.5**0.5], np.float32
    ).tobytes()  # 2, 1 and 3 in deviations of √(2/3)
    assert file.read_bytes().count(ages) == 1
    file.write_bytes(file.read_bytes().replace(ages, bytes(12)))
    for name in ("more", "notes"):
        (tmp_path / "s" / name).touch()
    result = call("check s")
    assert result.status == 2
    assert result.err.splitlines() == [
        "error: s: train/examples.arrow: the checksum differs from the one in meta.json",
        "error: s: more: the file is not listed in meta.json",
        "error: s: notes: the file is not listed in meta.json",
    ]


def test_a_system_error_is_one_line_and_status_1(call: Any) -> None:
    call(PREPARE)
    result = call("info s --plot no/such/folder.png")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "folder.png" in result.err


def test_options_come_from_the_signature_of_the_loader(call: Any) -> None:
    assert {"arrays", "synthetic"} <= set(LOADERS.names())
    overview = call("prepare --help").out
    assert all(name in overview for name in LOADERS.names())
    assert "Reads Parquet, CSV, other text tables" in overview
    options = call("prepare arrays --help").out
    for text in ("--client", "--heldout-fraction", "SOURCE", "--overwrite", "[required]"):
        assert text in options
    assert "--no-stratify" in options
    assert call("prepare arrays rows.csv --out s").status == 2  # --domain is needed
    assert call("prepare nonsense").status == 2


def test_fetch_hands_over_to_the_downloader(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, out: Path, progress: Any) -> list[Path]:
        progress(name, 1, 2)
        return [out / f"{name}.sqlite"]

    module = types.ModuleType("agnosticfl.data.fetch")
    monkeypatch.setattr(module, "fetch", fetch, raising=False)
    monkeypatch.setitem(sys.modules, "agnosticfl.data.fetch", module)
    assert call("fetch emnist --out raw").out == "raw/emnist.sqlite\n"
