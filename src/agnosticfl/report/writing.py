# SPDX-License-Identifier: Apache-2.0
"""The report: tables, plots and the page, from run folders."""

from collections.abc import Callable, Iterable
from pathlib import Path

from agnosticfl.files import write_json, write_whole
from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.details import counts, ledger, losses, times
from agnosticfl.report.grid import Grid, latex, markdown
from agnosticfl.report.intervals import with_intervals
from agnosticfl.report.page import make_page
from agnosticfl.report.painters import Painters
from agnosticfl.report.plots import draw_plots
from agnosticfl.report.progress import costs
from agnosticfl.report.record import as_json
from agnosticfl.report.runs import load_runs
from agnosticfl.report.table import help_lines, results
from agnosticfl.spans import span


def tables(comparison: Comparison, short: bool = False) -> list[Grid]:
    """What came out, one table per metric, and what it cost to be as good as FedAvg.

    Args:
      short: of very many domains, only the worst few and the best.
    """
    return [*results(comparison, short), *costs(comparison)]


def write_report(
    folders: Iterable[Path],
    out: Path,
    which: str = "last",
    per_client: Path | None = None,
    painters: Painters | None = None,
) -> Comparison:
    """Compares the finished runs in `folders` and writes the report into `out`.

    Args:
      which: model of each run: "last", "best" by its worst domain on held-out clients, or "mean".
      per_client: a file for the values of single clients.
      painters: processes that help with the plots; none if None.
    """
    write_clients = _per_client_writer(per_client)
    comparison = with_intervals(compare_runs(load_runs(folders, which)))
    main = tables(comparison)
    details = [part(comparison) for part in (losses, counts, ledger, times)]
    out.mkdir(parents=True, exist_ok=True)
    with span("plots"):
        figures = (painters or Painters(0)).save(draw_plots(comparison), out / "plots")
    parts = [*map(markdown, main), *(f"{line}\n" for line in help_lines(comparison))]
    write_whole(out / "table.md", "\n".join([*parts, *map(markdown, details)]))
    write_whole(out / "table.tex", "\n".join(map(latex, tables(comparison, short=True))))
    write_json(out / "comparison.json", as_json(comparison))
    write_whole(out / "report.html", make_page(comparison, main, details, figures))
    write_clients(comparison)
    return comparison


def _per_client_writer(path: Path | None) -> Callable[[Comparison], None]:
    """What writes the values of single clients, if they are wanted; a bad name is refused now."""
    if path is None:
        return lambda _: None
    from agnosticfl.report.per_client import check_name, write_per_client  # here: it needs Arrow

    check_name(path)
    return lambda comparison: write_per_client(comparison, path)
