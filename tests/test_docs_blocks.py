# SPDX-License-Identifier: Apache-2.0
"""Every block of commands or of Python in the docs is run, or says what it needs that is not here.

Commands are run as they stand, but with fewer rounds, and with names of the test in place of
those that are a reader's own.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import pytest
import typer

from agnosticfl.cli.commands import app
from tests.helpers.command_line import agnosticfl, called, printed_by
from tests.helpers.pages import FENCE, NEEDS, PAGES, ROOT, Block, blocks, script, to_run

# Pages whose blocks are run by tests of their own.
ELSEWHERE = {
    "tutorial.md": "tests/test_tutorial.py",
    "language.md": "tests/test_docs.py",
    "models.md": "tests/test_docs.py",
    "deploy.md": "tests/cli/test_deploy.py",
    "CONTRIBUTING.md": "tests/test_docs.py",
}
# What sets an environment up, which runs before any test does.
SET_UP = ("pip install ", "make ")
# So that a command takes seconds.
SHORTER = {
    "run": ["--rounds", "2"],
    "compare": ["--rounds", "2"],
    "references": ["--rounds", "2"],
    "bounds": ["--rounds", "2"],
    "tune": ["--rounds", "20", "--budget", "4", "--seeds", "1"],
    "deploy": ["--rounds", "1"],
}
LIVE = ("deploy", "local")  # starts processes, and so is one


class Setting(NamedTuple):
    """What a page speaks of and does not make itself."""

    prepare: Callable[[], None] = lambda: None  # makes files in the current folder
    names: Mapping[str, str] = {}  # word of the page -> word of the test
    variables: Callable[[], dict[str, Any]] = dict  # of the page's Python


def visits(rows: int = 600) -> pd.DataFrame:
    """A table of patients in two hospitals."""
    rng = np.random.default_rng(0)
    patient = rng.permutation(rows) % 150
    age, glucose = rng.integers(30, 90, rows), rng.normal(1, 0.3, rows).round(2)
    hospital = np.where(patient % 3 == 0, "coast", "north")
    columns = {"patient": patient, "hospital": hospital, "age": age, "glucose": glucose}
    return pd.DataFrame({**columns, "outcome": np.where(glucose + age / 60 > 2, "yes", "no")})


def tables() -> None:
    """The same as files, and new rows without a label."""
    visits().to_parquet("visits.parquet")
    visits(5).drop(columns="outcome").to_csv("new.csv", index=False)


def hospitals() -> None:
    """The table of the page on data, one file for each hospital, and new rows."""
    tables()
    rng = np.random.default_rng(0)
    for name in ("processed.cleveland.data", "processed.va.data"):
        rows = pd.DataFrame(rng.integers(0, 4, (60, 14)))
        rows.to_csv(name, header=False, index=False)
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
    columns: list[str] = [*names.split(",")]
    rows.to_csv("va.csv", header=columns, index=False)


def trained() -> None:
    """A store, a run on it, and new rows."""
    tables()
    roles = "--client patient --domain hospital --label outcome"
    splits = "--test-fraction 0.2 --heldout-fraction 0.1"
    done(f"data prepare arrays visits.parquet {roles} {splits} --out heart")
    done("init heart --out heart.toml")
    done("compare heart.toml --algorithms afa --seeds 1 --rounds 2 --out runs/heart")
    Path("new.csv").rename("new_patients.csv")


def new_rows() -> dict[str, Any]:
    torch, safetensors = (pytest.importorskip(n) for n in ("torch", "safetensors.torch"))
    module = torch.nn.Linear(2, 2)
    Path("folder").mkdir()
    safetensors.save_file(module.state_dict(), "folder/model.safetensors")
    return {"rows": visits(5), "module": module}


def keys() -> None:
    done("deploy keys server keys --host 127.0.0.1")


POINTS = {"TASK": "synthetic-points"}
SETTINGS = {
    "README.md": Setting(tables, {"mlflow": "tests.outside.own_parts:lines"}),
    "start.md": Setting(),
    "machines.md": Setting(),
    "data.md": Setting(hospitals, {}, lambda: {"frame": visits(), "Path": Path, "t": 1}),
    "algorithms.md": Setting(names=POINTS),
    "compression.md": Setting(names=POINTS),
    "export.md": Setting(trained, {}, new_rows),
    "privacy.md": Setting(keys, {**POINTS, "like-mine.toml": "synthetic-points"}),
    "security.md": Setting(names={"adult": "toy"}),
    "tune.md": Setting(names=POINTS),
}
QUICK = ("data.md",)


def words(line: str) -> list[str]:
    """The words of a command, without its comment; "…" is for whatever else a reader's has."""
    return [word for word in shlex.split(line, comments=True) if word != "…"]


def expanded(word: str) -> list[str]:
    """What a shell makes of a word: the files that a pattern stands for."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def done(line: str) -> None:
    """Runs `agnosticfl` with these words."""
    found = [name for word in words(line) for name in expanded(word)]
    ended = (agnosticfl if tuple(found[:2]) == LIVE else called)(*found)
    assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"


def run(block: Block, names: Mapping[str, str]) -> None:
    """Runs the commands of a block."""
    for line in block.lines():
        if line.startswith(SET_UP):
            continue
        program, *rest = words(line)
        assert program == "agnosticfl", line
        for word, ours in names.items():
            rest = [each.replace(word, ours) for each in rest]
        takes_rounds = rest[0] != "deploy" or rest[1] in ("local", "init")
        done(shlex.join([*rest, *(SHORTER.get(rest[0], []) if takes_rounds else [])]))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SETTINGS]
)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (page,) = (page for page in PAGES if page.name == name)
    monkeypatch.chdir(tmp_path)
    setting = SETTINGS[name]
    setting.prepare()
    variables = {"__name__": "__main__", **setting.variables()}
    for block in to_run(page):
        if block.language == "python":
            printed_by(block.text, tmp_path, variables)
        else:
            run(block, setting.names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_is_neither_run_nor_marked(page: Path):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(FENCE.findall(text)), "a fence that is not understood"
    assert {block.needs for block in blocks(page)} <= {"", *NEEDS}
    bare = [block.text for block in blocks(page) if not block.language]
    assert not [text for text in bare if text.startswith(("agnosticfl ", "pip ", "python "))]
    if to_run(page):
        assert (page.name in SETTINGS) != (page.name in ELSEWHERE)


def test_the_tests_of_other_pages_are_there():
    for page, file in ELSEWHERE.items():
        assert page in (ROOT / file).read_text(encoding="utf-8")


def commands(page: Path) -> Iterator[list[str]]:
    """What follows `agnosticfl` in the page's blocks for a shell, of those that are marked too."""
    for block in blocks(page):
        for line in block.lines() if block.language == "sh" else ():
            if line.startswith("agnosticfl "):
                yield words(line)[1:]


def parsed(words: list[str]) -> click.Command:
    """The command that these words call, if it takes all of them."""
    command, context = typer.main.get_command(app), None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    _, left, _ = command.make_parser(click.Context(command, parent=context)).parse_args(words)
    assert left == [], f"words too many: {left}"
    return command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_takes_every_command_of_a_page(page: Path):
    for line in commands(page):
        parsed(line)


def between_the_lines(page: Path) -> list[list[str]]:
    """What follows `agnosticfl` in commands that stand in the page's sentences and tables."""
    inline = re.findall(r"`(agnosticfl [^`]+)`", page.read_text(encoding="utf-8"))
    each = [line for text in inline for line in text.replace("\\|", "|").split("&&")]
    return [words(line)[1:] for line in each]


@pytest.mark.parametrize("name", ["results.md", "predictions.md"])
def test_the_program_takes_the_commands_that_figures_name(name: str):
    lines = between_the_lines(ROOT / "docs" / name)
    assert lines
    for line in lines:
        parsed(line)


def test_the_program_takes_the_commands_that_pictures_are_made_by():
    pictures = script("images/reports").PICTURES.values()
    reports = {picture.report.folder: picture.report for picture in pictures}
    for report in reports.values():
        for command in report.commands:
            parsed(words(command)[1:])


def test_that_test_sees_an_option_that_is_not_there():
    with pytest.raises(click.NoSuchOption):
        parsed(["run", "toy", "--hurry"])
    with pytest.raises(click.UsageError, match="No such command"):
        parsed(["walk", "toy"])
