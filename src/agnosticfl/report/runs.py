# SPDX-License-Identifier: Apache-2.0
"""Reading finished run folders, and putting those of one algorithm together."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.config import ALGORITHMS, Config, first_difference, title
from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json
from agnosticfl.metrics import kind
from agnosticfl.tracking import read_records

REFERENCE = "fedavg"  # the algorithm that others are measured against


class Run(NamedTuple):
    """A finished run."""

    folder: Path
    config: Config
    summary: dict[str, Any]
    records: list[dict[str, Any]]

    def series(self, name: str) -> np.ndarray:
        """One value of every round, [rounds] or [rounds, p]; NaN where it is absent."""
        return np.array([record[name] for record in self.records], np.float64)

    @property
    def epsilon(self) -> float:
        """The budget of its privacy; infinite without any."""
        return math.inf if self.config.dp is None else float(self.config.dp["epsilon"])

    @property
    def looks(self) -> list[int]:
        """The numbers of the records with a look at held-out clients."""
        return [i for i, record in enumerate(self.records) if "heldout" in record]

    def heldout(self, metric: str) -> np.ndarray:
        """The metric of each domain at each look, [looks, p]; NaN where it is absent."""
        looks = [self.records[i]["heldout"].values() for i in self.looks]
        return np.array([[values[metric] for values in look] for look in looks], np.float64)


class Cell(NamedTuple):
    """A mean over seeds."""

    mean: float
    std: float | None  # of the sample; None for a single seed
    values: list[float]


class Row(NamedTuple):
    """One algorithm in a comparison."""

    title: str
    runs: list[Run]
    cells: dict[str, dict[str, Cell]]  # metric -> domain -> cell
    difference: dict[str, float]  # metric -> largest minus smallest domain mean
    overall: dict[str, Cell]  # metric -> cell over all test examples
    clients: dict[str, dict[str, Cell]]  # metric -> "variance", "worst_tenth" -> cell; if asked for

    @property
    def algorithm(self) -> str:
        return self.runs[0].config.algorithm

    @property
    def target(self) -> str | None:
        """The one domain that target-only training sees."""
        return self.runs[0].config.target


class Comparison(NamedTuple):
    task: str
    domains: list[str]
    metrics: list[str]  # the one that tells the worst domain first
    rows: list[Row]
    harder: str | None  # the target's domain, or the one that FedAvg (uniform) serves worst


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """The finished runs in `folders`, each a run folder or a folder of run folders."""
    runs: list[Run] = []
    for folder in folders:
        check(folder.is_dir(), f"{folder} is not a folder")
        places = [folder] if (folder / "config.json").exists() else sorted(folder.iterdir())
        found = [_load(place) for place in places if (place / "summary.json").exists()]
        check(bool(found), f"{folder} holds no finished run (no summary.json)")
        runs += found
    return runs


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Runs of one task, grouped by algorithm in the paper's order."""
    tasks = sorted({run.config.task for run in runs})
    check(len(tasks) == 1, f"runs of different tasks cannot be compared: {', '.join(tasks)}")
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_order):
        groups.setdefault(title(run.config), []).append(run)
    for name, group in groups.items():
        seeds = [run.config.seed for run in group]
        check(len(set(seeds)) == len(seeds), f"two runs of {name} have the same seed: {seeds}")
        first, *others = [dataclasses.asdict(run.config) | {"seed": None} for run in group]
        for other in others:
            difference = first_difference(first, other)
            check(
                difference is None, f"runs of {name} differ in more than their seed: {difference}"
            )
    domains: list[str] = runs[0].summary["domains"]
    metrics = list(runs[0].summary["test"][domains[0]])
    metrics.sort(key=lambda name: name != runs[0].config.metric)
    known = {
        m: [d for d in domains if any(run.summary["test"][d][m] is not None for run in runs)]
        for m in metrics
    }
    rows = [_row(name, group, known) for name, group in groups.items()]
    return Comparison(tasks[0], domains, metrics, rows, _harder(rows, metrics[0]))


def _order(run: Run) -> tuple[float, ...]:
    """The paper's algorithms first; of one algorithm, less and less of ε, plain uploads first."""
    index = list(ALGORITHMS).index(run.config.algorithm)
    return index, -run.epsilon, run.config.compress is not None, run.config.seed


def worst(metric: str, cells: dict[str, Cell]) -> Cell:
    """The cell of the domain that is served worst."""
    return cells[_worst_domain(metric, cells)]


def _worst_domain(metric: str, cells: dict[str, Cell]) -> str:
    pick = min if kind(metric).higher_is_better else max
    return pick(cells, key=lambda domain: cells[domain].mean)


def seeds_text(comparison: Comparison) -> str:
    """What a caption says of the numbers below it."""
    numbers = sorted({len(row.runs) for row in comparison.rows})
    if numbers == [1]:
        return ""
    return f", mean (standard deviation) of {' to '.join(map(str, numbers))} seeds"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """`comparison.json`."""
    return {
        "task": comparison.task,
        "domains": comparison.domains,
        "metrics": comparison.metrics,
        "algorithms": [
            {
                "title": row.title,
                "algorithm": row.algorithm,
                "target": row.target,
                "seeds": [run.config.seed for run in row.runs],
                "test": {
                    metric: {domain: cell._asdict() for domain, cell in cells.items()}
                    for metric, cells in row.cells.items()
                },
                "worst": {m: worst(m, cells)._asdict() for m, cells in row.cells.items()},
                "difference": row.difference,
                "overall": {m: cell._asdict() for m, cell in row.overall.items()},
                "clients": {
                    m: {name: cell._asdict() for name, cell in cells.items()}
                    for m, cells in row.clients.items()
                },
                "bytes": row.runs[0].summary["bytes"],
                "config": dataclasses.asdict(row.runs[0].config),
            }
            for row in comparison.rows
        ],
    }


def _load(folder: Path) -> Run:
    try:
        config = Config(**read_json(folder / "config.json"))
        return Run(folder, config, read_json(folder / "summary.json"), read_records(folder))
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{folder} is not a readable run folder: {error}") from error


def _harder(rows: list[Row], metric: str) -> str | None:
    for row in rows:
        if row.target is not None:
            return row.target
    uniform = [row for row in rows if row.algorithm == REFERENCE]
    return _worst_domain(metric, uniform[0].cells[metric]) if uniform else None


def _row(name: str, runs: list[Run], known: dict[str, list[str]]) -> Row:
    cells = {
        m: {d: _cell(m, [run.summary["test"][d][m] for run in runs]) for d in domains}
        for m, domains in known.items()
    }
    means = {m: [cell.mean for cell in cells[m].values()] for m in known}
    overall, clients = _on_test(runs, "overall"), _on_test(runs, "clients")
    return Row(
        name,
        runs,
        cells,
        difference={m: max(means[m]) - min(means[m]) for m in known},
        overall={m: _cell(m, [values[m] for values in overall]) for m in known if overall},
        clients={
            m: {name: _cell(m, [spreads[m][name] for spreads in clients]) for name in clients[0][m]}
            for m in known
            if clients and m in clients[0]
        },
    )


def _on_test(runs: list[Run], part: str) -> list[dict[str, Any]]:
    """What the summaries say of all test examples or clients; empty unless all of them do."""
    found = [run.summary[part]["test"] for run in runs if part in run.summary]
    return found if len(found) == len(runs) else []


def _cell(metric: str, values: Iterable[float | None]) -> Cell:
    """A value that is missing where others have one was not finite: as bad as can be."""
    bad = -math.inf if kind(metric).higher_is_better else math.inf
    return cell([bad if value is None else value for value in values])


def cell(values: list[float]) -> Cell:
    """Mean and sample deviation."""
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return Cell(statistics.fmean(values), statistics.stdev(values) if finite else None, values)
