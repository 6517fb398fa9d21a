# SPDX-License-Identifier: Apache-2.0
"""The table of results: the worst domain and the difference first, then all, then each domain."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agnosticfl.report.basis import Behind, foot, notes
from agnosticfl.report.comparison import Cell, Comparison, Row, model_text, seeds_text
from agnosticfl.report.grid import DASH, Entry, Grid, number, places, plain

VARIANCE = "variance over clients"
IN_ORDER = 6  # so many domains stand as the data has them; of more, the worst comes first
ALL = 12  # so many domains are shown where there is no room to scroll; of more:
WORST = 5  # so many of the worst, and the best
MARK = "†"  # the worst domain is served otherwise than by the reference, whoever is asked


class Column(NamedTuple):
    name: Entry
    cells: Sequence[Cell | None]  # one per algorithm
    lower_is_better: bool
    behind: Behind = Behind()  # whose examples


def results(comparison: Comparison, short: bool = False) -> list[Grid]:
    """One table per metric, that of the task first.

    Args:
      short: leaves out what lies between the worst domains and the best if there are many.
    """
    return [_results(comparison, metric, short) for metric in comparison.metrics]


def help_lines(comparison: Comparison) -> list[str]:
    """How the tables are to be read."""
    lines = [
        "Worst is the mean over runs of each run's own worst domain, difference that of how far its"
        " best domain is from its worst.",
        "Bold is the best of a column; where target-only training is best, so is the best of the"
        " algorithms that train on all domains. A domain's name is bold if it is the target, or"
        " else the one that FedAvg (uniform) serves worst.",
        f"{DASH} stands for what could not be measured; a note says why.",
    ]
    if max(len(row.runs) for row in comparison.rows) > 1:
        lines.append("In parentheses: the standard deviation over seeds.")
    if comparison.bootstrap.resamples:
        lines += _interval_help(comparison)
    return lines


def _interval_help(comparison: Comparison) -> list[str]:
    numbers = sorted(set(comparison.bootstrap.resamples.values()))
    lines = [
        "In brackets: where 95 % of the means lie when the test clients are drawn again, with"
        f" replacement, {' or '.join(f'{n:,}' for n in numbers)} times. It is the error over"
        " people, not over seeds. A worst domain that is picked anew each time is a bit worse than"
        " the one that was measured: the intervals of worst and difference lean to the bad side.",
    ]
    if len(comparison.rows) > 1:
        lines.append(
            f"{MARK} marks a worst that differs from that of {comparison.reference.title} by more"
            " than other test clients explain: 95 % of the differences on the same clients have"
            " one sign."
        )
    return lines


def short_help(comparison: Comparison) -> str:
    """The same for a terminal."""
    signs = ["bold: best of a column"]
    if max(len(row.runs) for row in comparison.rows) > 1:
        signs.append("(…): deviation over seeds")
    if comparison.bootstrap.resamples:
        signs.append("[…]: 95 % interval over test clients")
        if len(comparison.rows) > 1:
            signs.append(f"{MARK}: differs from {comparison.reference.title} beyond that")
    return "; ".join(signs)


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


def _results(comparison: Comparison, metric: str, short: bool) -> Grid:
    ordered = _ordered(comparison, metric)
    shown = _few(ordered, comparison.known(metric)) if short else ordered
    columns = _columns(comparison, metric, shown)
    targeted = [row.target is not None for row in comparison.rows]
    decimals = places(cell.mean for row in comparison.rows for cell in row.cells[metric].values())
    entries = [_entries(column, targeted, decimals) for column in columns]
    entries[0] = [
        _worst(entry, row, metric) for entry, row in zip(entries[0], comparison.rows, strict=True)
    ]
    titles = [Entry(row.title) for row in comparison.rows]
    return Grid(
        f"{comparison.task}: test {metric}{model_text(comparison)}{seeds_text(comparison)}"
        f"{_interval_text(comparison, metric)}",
        [Entry("algorithm"), *(column.name for column in columns)],
        [list(row) for row in zip(titles, *entries, strict=True)],
        foot(comparison, [column.behind for column in columns]),
        [*_left_out(comparison, shown), *notes(comparison, metric)],
    )


def _interval_text(comparison: Comparison, metric: str) -> str:
    number = comparison.bootstrap.resamples.get(metric)
    return "" if number is None else f", [95 % interval over test clients, {number:,} resamples]"


def _ordered(comparison: Comparison, metric: str) -> list[str]:
    """As the data has them; if there are many, those that the reference serves worst first."""
    if len(comparison.domains) <= IN_ORDER:
        return comparison.domains
    cells = comparison.reference.cells[metric]
    sign = 1 if comparison.higher_is_better[metric] else -1

    def place(domain: str) -> float:
        return sign * cells[domain].mean if domain in cells else math.inf

    return sorted(comparison.domains, key=place)


def _few(ordered: list[str], known: list[str]) -> list[str]:
    """The worst and the best, if there are too many to show them all."""
    if len(ordered) <= ALL:
        return ordered
    measured = [domain for domain in ordered if domain in known]
    return list(dict.fromkeys([*measured[:WORST], *measured[-1:]]))


def _left_out(comparison: Comparison, shown: list[str]) -> list[str]:
    if len(shown) == len(comparison.domains):
        return []
    return [
        f"{len(comparison.domains)} domains, of which the {WORST} that"
        f" {comparison.reference.title} serves worst and the one it serves best are shown;"
        " report.html and table.md have all of them."
    ]


def _columns(comparison: Comparison, metric: str, shown: list[str]) -> list[Column]:
    rows, lower = comparison.rows, not comparison.higher_is_better[metric]
    everybody = Behind(comparison.known(metric), together=True)
    worst = Behind([domain for row in rows for domain in row.worst_domains.get(metric, [])])
    first = [
        Column(Entry("worst"), [row.worst.get(metric) for row in rows], lower, worst),
        Column(Entry("difference"), [row.difference.get(metric) for row in rows], True),
    ]
    domains = [
        Column(
            Entry(domain, bold=domain == comparison.harder),
            [row.cells[metric].get(domain) for row in rows],
            lower,
            Behind([domain]),
        )
        for domain in shown
    ]
    tenth = [_spread(row, metric, "worst_tenth") for row in rows]
    variance = [_spread(row, metric, "variance") for row in rows]
    average = Column(Entry("all"), [row.overall.get(metric) for row in rows], lower, everybody)
    clients = [
        Column(Entry("worst 10 % of clients"), tenth, lower, everybody),
        Column(Entry(VARIANCE), variance, True, everybody),
    ]
    return [*first, *_measured([average]), *domains, *_measured(clients)]


def _measured(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if any(column.cells)]


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


def _worst(entry: Entry, row: Row, metric: str) -> Entry:
    """With the mark, and the names of the worst domains for whoever points at it."""
    often = Counter(row.worst_domains.get(metric, [])).most_common()
    hint = ", ".join(f"{domain} ({n} of {len(row.runs)})" for domain, n in often)
    against = row.against.get(metric)
    mark = f" {MARK}" if against is not None and against.stands_out else ""
    return entry._replace(text=entry.text + mark, hint=hint)
