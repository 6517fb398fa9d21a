# SPDX-License-Identifier: Apache-2.0
"""The paper's table: mean (standard deviation) for each domain, and the difference."""

from collections.abc import Sequence
from typing import NamedTuple

from agnosticfl.report.grid import Entry, Grid, number, places, plain
from agnosticfl.report.runs import Cell, Comparison, Row, seeds_text

VARIANCE = "variance over clients"


class Column(NamedTuple):
    name: Entry
    cells: Sequence[Cell | None]  # one per algorithm
    lower_is_better: bool


def results(comparison: Comparison) -> list[Grid]:
    """One table per metric, that of the task first."""
    return [_results(comparison, metric) for metric in comparison.metrics]


def bold(column: Column, targeted: Sequence[bool], decimals: int) -> list[bool]:
    """Where the paper prints bold: at the best of a column.

    Where a model that was trained for one domain alone is best, the best of the models for all
    domains is bold too (the paper's EMNIST table). What prints the same is marked the same.
    """
    means = {i: cell.mean for i, cell in enumerate(column.cells) if cell}
    for_all = {i: mean for i, mean in means.items() if not targeted[i]}
    pick = min if column.lower_is_better else max
    marked: set[int] = set()
    for rivals in (means, for_all):
        if len(rivals) > 1:
            best = plain(pick(rivals.values()), decimals)
            marked |= {i for i, mean in rivals.items() if plain(mean, decimals) == best}
    return [i in marked for i in range(len(column.cells))]


def _results(comparison: Comparison, metric: str) -> Grid:
    columns = [c for c in _columns(comparison, metric) if any(c.cells)]
    targeted = [row.target is not None for row in comparison.rows]
    decimals = places(cell.mean for row in comparison.rows for cell in row.cells[metric].values())
    entries = [_entries(column, targeted, decimals) for column in columns]
    titles = [Entry(row.title) for row in comparison.rows]
    return Grid(
        f"{comparison.task}: test {metric}{seeds_text(comparison)}",
        [Entry("algorithm"), *(column.name for column in columns)],
        [list(row) for row in zip(titles, *entries, strict=True)],
    )


def _columns(comparison: Comparison, metric: str) -> list[Column]:
    rows, lower = comparison.rows, not comparison.higher_is_better[metric]
    domains = [
        Column(
            Entry(domain, bold=domain == comparison.harder),
            [row.cells[metric].get(domain) for row in rows],
            lower,
        )
        for domain in comparison.domains
    ]
    others = [
        ("all", [row.overall.get(metric) for row in rows], lower),
        ("worst", [row.worst(metric) for row in rows], lower),
        ("difference", [Cell(row.difference[metric], None, []) for row in rows], True),
        ("worst 10 % of clients", [_spread(row, metric, "worst_tenth") for row in rows], lower),
        (VARIANCE, [_spread(row, metric, "variance") for row in rows], True),
    ]
    return domains + [Column(Entry(name), cells, down) for name, cells, down in others]


def _spread(row: Row, metric: str, name: str) -> Cell | None:
    return row.clients.get(metric, {}).get(name)


def _entries(column: Column, targeted: Sequence[bool], decimals: int) -> list[Entry]:
    if column.name.text == VARIANCE:  # in the square of the metric's unit
        decimals = places(cell.mean for cell in column.cells if cell)
    marks = bold(column, targeted, decimals)
    return [
        number(cell, decimals)._replace(bold=mark)
        for cell, mark in zip(column.cells, marks, strict=True)
    ]
