# SPDX-License-Identifier: Apache-2.0
"""Run folders in; tables, plots and one self-contained page out."""

from collections.abc import Iterable
from pathlib import Path

from agnosticfl.files import write_json, write_whole
from agnosticfl.report.details import counts, ledger, losses, times
from agnosticfl.report.grid import Grid, latex, markdown, terminal
from agnosticfl.report.page import make_page
from agnosticfl.report.plots import draw_plots, save
from agnosticfl.report.progress import costs
from agnosticfl.report.runs import Comparison, as_json, compare_runs, load_runs
from agnosticfl.report.table import results

__all__ = ["Comparison", "tables", "terminal", "write_report"]


def tables(comparison: Comparison) -> list[Grid]:
    """What came out, one table per metric, and what it cost to be as good as FedAvg."""
    return [*results(comparison), *costs(comparison)]


def write_report(folders: Iterable[Path], out: Path) -> Comparison:
    """Compares the finished runs in `folders` and writes the report into `out`."""
    comparison = compare_runs(load_runs(folders))
    main, figures = tables(comparison), list(draw_plots(comparison))
    details = [part(comparison) for part in (losses, counts, ledger, times)]
    out.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        save(figure, out / "plots")
    write_whole(out / "table.md", "\n".join(map(markdown, main + details)))
    write_whole(out / "table.tex", "\n".join(map(latex, main)))
    write_json(out / "comparison.json", as_json(comparison))
    write_whole(out / "report.html", make_page(comparison, main, details, figures))
    return comparison
