# SPDX-License-Identifier: Apache-2.0
"""The examples run, as programs and as notebooks, and print what they say that they print."""

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import printed_by

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = runpy.run_path(str(FOLDER / "notebooks.py"))
PROGRAMS: list[Path] = NOTEBOOKS["programs"]()
NUMBER = re.compile(r"\d+\.\d+")
TOLERANCE = {"private_run": 0.1, "federation": 0.05}  # noise is new in every run; so is the order


def said(program: str) -> str:
    """What an example says that it prints: the block in its last cell."""
    kind, text = NOTEBOOKS["cells"](program)[-1]
    assert kind == "markdown"
    (block,) = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return block


def assert_same(printed: str, expected: str, tolerance: float) -> None:
    """Word by word, and number by number within a tolerance."""
    assert NUMBER.sub("#", printed.strip()) == NUMBER.sub("#", expected.strip())
    for one, other in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        assert float(one) == pytest.approx(float(other), abs=tolerance)


def test_there_are_five_examples():
    names = ["federation", "own_data", "own_model", "own_rule", "private_run"]
    assert [program.stem for program in PROGRAMS] == names


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_notebook_has_the_cells_of_its_program(program: Path):
    notebook = program.with_suffix(".ipynb").read_text("utf-8")
    assert NOTEBOOKS["notebook"](program.read_text("utf-8")) == notebook, (
        "run examples/notebooks.py"
    )


def test_a_weight_rule_in_ten_lines(tmp_path: Path):
    program = (FOLDER / "own_rule.py").read_text("utf-8")
    (rule,) = re.findall(r"^def worst_two.*?(?=\n\n\n)", program, re.DOTALL | re.MULTILINE)
    assert len(rule.splitlines()) <= 10
    assert_same(printed_by(program, tmp_path), said(program), 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_notebook_runs(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    if program.stem == "federation":
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(program.with_suffix(".ipynb"), as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs: list[Any] = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    printed = "".join(out.text for out in outputs if out.get("name") == "stdout")
    assert_same(printed, said(program.read_text("utf-8")), TOLERANCE.get(program.stem, 0.01))
