# SPDX-License-Identifier: Apache-2.0
"""Reading finished run folders, and putting those of one algorithm together."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.config import ALGORITHMS, Config, title
from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json
from agnosticfl.metrics import kind
from agnosticfl.tracking import read_records


class Run(NamedTuple):
    """A finished run."""

    folder: Path
    config: Config
    summary: dict[str, Any]
    records: list[dict[str, Any]]

    def series(self, name: str) -> np.ndarray:
        """One value of every round, [rounds] or [rounds, p]; NaN where it is absent."""
        return np.array([record[name] for record in self.records], np.float64)


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


class Comparison(NamedTuple):
    task: str
    domains: list[str]
    metrics: list[str]
    rows: list[Row]


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
    for run in sorted(
        runs, key=lambda r: (list(ALGORITHMS).index(r.config.algorithm), r.config.seed)
    ):
        groups.setdefault(title(run.config), []).append(run)
    for name, group in groups.items():
        seeds = [run.config.seed for run in group]
        check(len(set(seeds)) == len(seeds), f"two runs of {name} have the same seed: {seeds}")
    domains: list[str] = runs[0].summary["domains"]
    metrics = list(runs[0].summary["test"][domains[0]])
    return Comparison(
        tasks[0], domains, metrics, [_row(n, g, domains, metrics) for n, g in groups.items()]
    )


def worst(metric: str, cells: dict[str, Cell]) -> Cell:
    """The cell of the domain that is served worst."""
    pick = min if kind(metric).higher_is_better else max
    return pick(cells.values(), key=lambda cell: cell.mean)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """`comparison.json`."""
    return {
        "task": comparison.task,
        "domains": comparison.domains,
        "metrics": comparison.metrics,
        "algorithms": [
            {
                "title": row.title,
                "algorithm": row.runs[0].config.algorithm,
                "target": row.runs[0].config.target,
                "seeds": [run.config.seed for run in row.runs],
                "test": {
                    metric: {domain: cell._asdict() for domain, cell in cells.items()}
                    for metric, cells in row.cells.items()
                },
                "worst": {m: worst(m, cells)._asdict() for m, cells in row.cells.items()},
                "difference": row.difference,
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


def _row(name: str, runs: list[Run], domains: list[str], metrics: list[str]) -> Row:
    cells = {m: _cells(runs, domains, m) for m in metrics}
    means = {m: [cell.mean for cell in cells[m].values()] for m in metrics}
    return Row(name, runs, cells, {m: max(means[m]) - min(means[m]) for m in metrics})


def _cells(runs: list[Run], domains: list[str], metric: str) -> dict[str, Cell]:
    """A domain without test examples has no cell."""
    values = {d: [run.summary["test"][d][metric] for run in runs] for d in domains}
    return {d: _cell(v) for d, v in values.items() if None not in v}


def _cell(values: list[float]) -> Cell:
    std = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), std, values)
