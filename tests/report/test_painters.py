# SPDX-License-Identifier: Apache-2.0
"""Plots that other processes save."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.painters import Painters
from agnosticfl.report.plots import draw_plots
from tests.helpers.reports import course

PATIENCE = 60.0  # seconds


@pytest.fixture
def comparison() -> Comparison:
    algorithms = ("fedavg", "afa", "qffl")
    return compare_runs([course(a, s, ["a", "b"], [1.0, 2.0]) for a in algorithms for s in (0, 1)])


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_they_are_those_that_this_process_would_save(comparison: Comparison, tmp_path: Path):
    alone = Painters(0).save(draw_plots(comparison), tmp_path / "alone")
    helped = Painters(2)
    try:
        together = helped.save(draw_plots(comparison), tmp_path / "together")
    finally:
        helped.close()
    assert together == alone
    assert files(tmp_path / "together") == files(tmp_path / "alone")
    assert len(files(tmp_path / "alone")) == 2 * len(alone) > 4  # as PNG and SVG


def test_what_a_process_fails_to_do_is_done_here(comparison: Comparison, tmp_path: Path):
    helped = Painters(2)
    helped.close()  # before any plot comes
    saved = helped.save(draw_plots(comparison), tmp_path)
    names = [plot.name for plot in draw_plots(comparison)]
    assert [each.name for each in saved] == names
    assert {Path(name).stem for name in files(tmp_path)} == set(names)


def test_a_process_with_enough_painters_loads_no_matplotlib(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from agnosticfl.report.painters import Painters;"
        "from agnosticfl.report.panels import Line, Panel, draw; import numpy as np;"
        "line = Line('a', 0, [np.arange(3.0)], [np.arange(3.0)]); helpers = Painters(2);"
        "(one,) = helpers.save([draw('x', 'X', [Panel('', 'q', [line])])], Path(sys.argv[1]));"
        "helpers.close(); print(one.name, one.size, 'matplotlib' in sys.modules)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
    assert set(files(tmp_path)) == {"x.png", "x.svg"}


def test_they_end_with_the_process_that_started_them():
    code = (
        "import os; from agnosticfl.report.painters import Painters;"
        "print(Painters(1).processes()[0].pid, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    process, until = int(done.stdout), time.monotonic() + PATIENCE
    while time.monotonic() < until and _runs(process):
        time.sleep(0.1)
    assert not _runs(process)


def _runs(process: int) -> bool:
    """Whether it is there, and more than an entry in the system's table."""
    try:
        os.kill(process, 0)
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (OSError, ValueError):
        return False
