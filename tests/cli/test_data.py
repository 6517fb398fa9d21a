# SPDX-License-Identifier: Apache-2.0
"""The data commands as a user types them."""

import json
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
    command = typer.main.get_command(data_app)

    def run(line: str) -> Result:
        with pytest.raises(SystemExit) as ended, one_line_errors():
            command(line.split(), prog_name="data")
        shown = capsys.readouterr()
        return Result(ended.value.code, shown.out, shown.err)

    return run


PREPARE = "prepare arrays rows.csv --client who --domain land --label kind --out s"


def test_prepare_info_check(call: Any, tmp_path: Path) -> None:
    made = call(PREPARE)
    assert (made.status, made.err) == (0, "")
    assert made.out == "s: train has 3 examples of 2 clients\n"
    assert open_store(tmp_path / "s").meta.labels == ("cat", "dog")
    assert call("check s").out == "s: sound\n"
    shown = call("info s --plot s.png")
    assert shown.status == 0
    assert "rows.csv (licence: unknown)" in shown.out
    assert "train: 1 clients have several domains" in shown.out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


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
    ages = np.array([2, 1, 3], np.float32).tobytes()
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
    assert "Reads Parquet, CSV or .npz" in overview
    options = call("prepare arrays --help").out
    for text in ("--client", "--heldout-fraction", "SOURCE", "--overwrite", "[required]"):
        assert text in options
    assert call("prepare arrays rows.csv --out s").status == 2  # --client is needed
    assert call("prepare nonsense").status == 2


def test_fetch_hands_over_to_the_downloader(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, out: Path, progress: Any) -> list[Path]:
        progress(name, 1, 2)
        return [out / f"{name}.sqlite"]

    module = types.ModuleType("agnosticfl.data.fetch")
    monkeypatch.setattr(module, "fetch", fetch, raising=False)
    monkeypatch.setitem(sys.modules, "agnosticfl.data.fetch", module)
    assert call("fetch emnist --out raw").out == "raw/emnist.sqlite\n"
