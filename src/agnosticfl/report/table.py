# SPDX-License-Identifier: Apache-2.0
"""The paper's table: mean (standard deviation) for each domain, and the difference."""

from typing import NamedTuple

from rich.table import Table

from agnosticfl.metrics import kind
from agnosticfl.report.runs import Cell, Comparison, worst


class Grid(NamedTuple):
    """A table of strings; `best` marks the cells that are best in their column."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    best: list[list[bool]]


def grids(comparison: Comparison) -> list[Grid]:
    """One table a metric."""
    return [_grid(comparison, metric) for metric in comparison.metrics]


def markdown(grid: Grid) -> str:
    """For `table.md`; the best of each column is bold."""
    rows = [
        [f"**{text}**" if best else text for text, best in zip(row, marks, strict=True)]
        for row, marks in zip(grid.rows, grid.best, strict=True)
    ]
    rule = ["---", *["---:"] * (len(grid.header) - 1)]
    lines = ["| " + " | ".join(cells) + " |" for cells in (grid.header, rule, *rows)]
    return f"{grid.caption}\n\n" + "\n".join(lines) + "\n"


def terminal(grid: Grid) -> Table:
    """For the terminal."""
    table = Table(title=grid.caption, title_justify="left")
    for number, name in enumerate(grid.header):
        table.add_column(name, justify="right" if number else "left")
    for row, marks in zip(grid.rows, grid.best, strict=True):
        table.add_row(*(f"[bold]{t}[/]" if b else t for t, b in zip(row, marks, strict=True)))
    return table


def _grid(comparison: Comparison, metric: str) -> Grid:
    columns = [[row.cells[metric].get(d) for row in comparison.rows] for d in comparison.domains]
    columns.append([worst(metric, row.cells[metric]) for row in comparison.rows])
    lowest = not kind(metric).higher_is_better
    differences = [row.difference[metric] for row in comparison.rows]
    texts = [[_text(cell) for cell in column] for column in columns]
    texts.append([f"{d:.3g}" for d in differences])
    marks = [_best([c.mean if c else None for c in column], lowest) for column in columns]
    marks.append(_best(list(differences), lowest=True))
    seeds = len(comparison.rows[0].runs)
    spread = f", mean (standard deviation) of {seeds} seeds" if seeds > 1 else ""
    names = [row.title for row in comparison.rows]
    return Grid(
        caption=f"{comparison.task}: test {metric}{spread}",
        header=["algorithm", *comparison.domains, "worst", "difference"],
        rows=[[name, *cells] for name, *cells in zip(names, *texts, strict=True)],
        best=[[False, *cells] for cells in zip(*marks, strict=True)],
    )


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.mean:.4g}" + (f" ({cell.std:.1g})" if cell.std is not None else "")


def _best(values: list[float | None], lowest: bool) -> list[bool]:
    """Marks the best value, unless there is nothing to choose from."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return [False] * len(values)
    best = (min if lowest else max)(known)
    return [v == best for v in values]
