# SPDX-License-Identifier: Apache-2.0
"""What stands beside the results: losses on all splits, counts, bytes, time."""

import numpy as np

from agnosticfl.report.basis import of_one_domain
from agnosticfl.report.comparison import Cell, Comparison, Row, cell, model_text, seeds_text
from agnosticfl.report.grid import DASH, Entry, Grid, grid, in_bytes, number, places
from agnosticfl.report.runs import Run
from agnosticfl.runs.records import asked_in

LAST = 0.1  # the share of the rounds that tells the training loss at the end


def losses(comparison: Comparison) -> Grid:
    """Training, held-out and test loss of each domain, side by side."""
    cells = {
        (row.title, domain): [
            _training(row, i),
            *(_loss(row, s, domain) for s in ("heldout", "test")),
        ]
        for row in comparison.rows
        for i, domain in enumerate(comparison.domains)
    }
    decimals = places(c.mean for several in cells.values() for c in several if c)
    rows = [
        [
            Entry(f"{title}, {domain}"),
            *(number(c, decimals) for c in several),
            _tested(comparison, domain),
        ]
        for (title, domain), several in cells.items()
    ]
    return grid(
        f"{comparison.task}: loss{model_text(comparison) or ' at the end'}; training loss is the"
        f" mean of the last {100 * LAST:.0f} % of the rounds{seeds_text(comparison)}",
        ("algorithm, domain", "training", "held-out", "test", "test examples"),
        rows,
        [
            *of_one_domain(comparison),
            *["There are no looks at held-out clients."]
            * all(c[1] is None for c in cells.values()),
        ],
    )


def counts(comparison: Comparison) -> Grid:
    """Examples of each domain in the data, and per round."""
    data = comparison.rows[0].runs[0].summary.get("examples", {})
    rows = [
        [Entry(f"data, {split}"), *(Entry(f"{n:,}", n) for n in numbers.values())]
        for split, numbers in data.items()
    ]
    for row in comparison.rows:
        seen = np.concatenate([run.series("count") for run in row.runs])
        rows.append([Entry(f"per round, {row.title}"), *map(_count, seen.T)])
    return grid(
        f"{comparison.task}: examples of each domain, in the data and per round (mean)",
        ("where", *comparison.domains),
        rows,
        of_one_domain(comparison),
    )


def ledger(comparison: Comparison) -> Grid:
    """Bytes per round and of the run; and of evaluations, if clients evaluate."""
    head = [
        "algorithm",
        "down per round",
        "up per round",
        "sum",
        "the paper's formula",
        "whole run",
    ]
    rows = [[Entry(row.title), *map(_size, _bytes(row.runs[0]))] for row in comparison.rows]
    asked = [_asked(row.runs[0]) for row in comparison.rows]
    if any(asked):
        head.append("of that, evaluations")
        for row, size in zip(rows, asked, strict=True):
            row.append(_size(size or None))
    return grid(f"{comparison.task}: bytes of all clients together", head, rows)


def times(comparison: Comparison) -> Grid:
    """Seconds per round, and of all rounds."""
    seconds = {row.title: [run.series("seconds") for run in row.runs] for row in comparison.rows}
    untold = any(np.isnan(s).all() for runs in seconds.values() for s in runs)
    medians = {title: cell([float(np.median(s)) for s in runs]) for title, runs in seconds.items()}
    sums = {title: cell([float(s.sum()) for s in runs]) for title, runs in seconds.items()}
    columns = [(cells, places(c.mean for c in cells.values())) for cells in (medians, sums)]
    return grid(
        f"{comparison.task}: seconds{seeds_text(comparison)}",
        ("algorithm", "per round (median)", "all rounds"),
        [[Entry(title), *(number(cs[title], d) for cs, d in columns)] for title in seconds],
        ["A private run does not say how long its rounds took."] * untold,
    )


def _training(row: Row, domain: int) -> Cell | None:
    last = max(1, round(LAST * len(row.runs[0].records)))
    ends = [run.series("loss")[-last:, domain] for run in row.runs]
    if any(np.isnan(end).all() for end in ends):
        return None
    return cell([float(np.nanmean(end)) for end in ends])


def _loss(row: Row, split: str, domain: str) -> Cell | None:
    values = [run.summary.get(split, {}).get(domain, {}).get("loss") for run in row.runs]
    return None if None in values else cell(values)


def _tested(comparison: Comparison, domain: str) -> Entry:
    examples = comparison.runs[0].test_examples.get(domain)
    return Entry(DASH) if examples is None else Entry(f"{examples:,}", examples)


def _count(numbers: np.ndarray) -> Entry:
    absent = float(np.mean(numbers == 0))
    if absent == 1:
        return Entry(DASH)
    note = f" (absent in {100 * absent:.1f} % of the rounds)" if absent else ""
    return Entry(f"{numbers.mean():,.1f}{note}", float(numbers.mean()))


def _bytes(run: Run) -> tuple[int, int, int, int | None, float]:
    sizes = run.summary["bytes"]
    down, up = sizes["down_per_round"], sizes["up_per_round"]
    trained = run.series("bytes_down").sum() + run.series("bytes_up").sum()
    return down, up, down + up, sizes["paper_per_round"], float(trained) + _asked(run)


def _asked(run: Run) -> int:
    """Bytes of evaluations by clients."""
    return sum(asked_in(run.summary["bytes"]))


def _size(size: float | None) -> Entry:
    """The paper's formula is for FedAvg and AFA; other algorithms have none."""
    return Entry(DASH) if size is None else Entry(in_bytes(size), size)
