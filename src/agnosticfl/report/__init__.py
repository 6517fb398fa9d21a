# SPDX-License-Identifier: Apache-2.0
"""Run folders in; tables, plots and one self-contained page out."""

from collections.abc import Iterable
from pathlib import Path

from agnosticfl.files import write_json, write_whole
from agnosticfl.report.page import page
from agnosticfl.report.plots import plots, save_png
from agnosticfl.report.runs import Comparison, as_json, compare_runs, load_runs
from agnosticfl.report.table import grids, markdown, terminal

__all__ = ["Comparison", "grids", "terminal", "write_report"]


def write_report(folders: Iterable[Path], out: Path) -> Comparison:
    """Compares the finished runs in `folders` and writes the report into `out`."""
    comparison = compare_runs(load_runs(folders))
    tables, figures = grids(comparison), list(plots(comparison))
    out.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        save_png(figure, out / "plots")
    write_whole(out / "table.md", "\n".join(map(markdown, tables)))
    write_json(out / "comparison.json", as_json(comparison))
    write_whole(out / "report.html", page(comparison, tables, figures))
    return comparison
