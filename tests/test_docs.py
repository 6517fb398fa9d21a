# SPDX-License-Identifier: Apache-2.0
"""What the pages in docs/ show is what the program is and does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "agnosticfl"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def tutorial() -> str:
    (code,) = PYTHON.findall((ROOT / "docs" / "tutorial.md").read_text())
    return code


def test_the_tutorial_is_short_and_runs(tmp_path: Path):
    code = tutorial()
    assert len(code.splitlines()) < 40
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # The page says what is printed; the last digit may differ between machines.
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (said,) = re.findall(r"```\n(fedavg .*?)```", page, re.DOTALL)
    for one, other in zip(*(re.findall(r"[01]\.\d+", t) for t in (said, done.stdout)), strict=True):
        assert abs(float(one) - float(other)) < 0.03
    assert {"report.html", "table.md"} <= {path.name for path in (tmp_path / "visits").iterdir()}


def test_every_line_of_the_algorithm_is_quoted_from_the_code():
    page = (ROOT / "docs" / "algorithm.md").read_text()
    code = {line.strip() for file in SOURCE.rglob("*.py") for line in file.read_text().splitlines()}
    for line in "".join(re.findall(r"```\n(.*?)```", page, re.DOTALL)).splitlines():
        assert line.strip() in code, line
    # Lines of Algorithm 1: all of both procedures but those that only begin or end a block.
    found = ", ".join(re.findall(r"^\*\*([\d, ]+)\.\*\*", page, re.MULTILINE))
    assert found == "2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 2, 3, 4, 5, 7, 8, 9, 10, 13"


def test_every_file_that_the_algorithm_page_names_is_there():
    page = (ROOT / "docs" / "algorithm.md").read_text()
    for name in set(re.findall(r"`([\w/]+\.py)`", page)):
        assert (SOURCE / name).is_file(), name


@pytest.mark.slow
def test_the_notebook_runs_and_does_what_the_tutorial_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(ROOT / "examples" / "own_data.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for line in filter(None, tutorial().splitlines()):
        assert line in code
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert (tmp_path / "visits" / "report.html").exists()
    assert any("afa {'city':" in str(cell.get("outputs")) for cell in notebook.cells)
