# SPDX-License-Identifier: Apache-2.0
"""Reading finished run folders, and putting those of one algorithm together."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.metrics import reading
from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json
from agnosticfl.runs.compare import order_of
from agnosticfl.runs.config import Config, as_table, first_difference, from_table
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import find_method, title
from agnosticfl.weights import from_table as rule_from_table


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

    @property
    def order(self) -> int:
        """The place of its method in tables."""
        order = order_of(self.folder.parent)
        name = self.config.algorithm
        return order.index(name) if name in order else len(order)

    @property
    def is_reference(self) -> bool:
        """Whether the others are measured against its method."""
        return is_reference(self.config.algorithm)

    @property
    def follows_losses(self) -> bool:
        """Whether its λ moves by losses; a rule that this machine lacks is taken to do so."""
        try:
            return rule_from_table(self.config.weight_rule).follows_losses
        except BadInput:
            return True

    def higher_is_better(self, metric: str) -> bool:
        """Which way is better; runs of older versions have metrics that the program knows."""
        known: dict[str, bool] = self.summary.get("higher_is_better", {})
        return known[metric] if metric in known else reading(metric).higher_is_better

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
    higher_is_better: dict[str, bool]  # metric -> which way is better

    @property
    def algorithm(self) -> str:
        return self.runs[0].config.algorithm

    @property
    def is_reference(self) -> bool:
        """Whether the others are measured against it."""
        return self.runs[0].is_reference

    def worst_domain(self, metric: str) -> str:
        """The domain that is served worst."""
        pick = min if self.higher_is_better[metric] else max
        cells = self.cells[metric]
        return pick(cells, key=lambda domain: cells[domain].mean)

    def worst(self, metric: str) -> Cell:
        """The cell of the domain that is served worst."""
        return self.cells[metric][self.worst_domain(metric)]

    @property
    def target(self) -> str | None:
        """The one domain that target-only training sees."""
        return self.runs[0].config.target


class Comparison(NamedTuple):
    task: str
    domains: list[str]
    metrics: list[str]  # the one that tells the worst domain first
    rows: list[Row]
    higher_is_better: dict[str, bool]  # metric -> which way is better
    harder: str | None  # the target's domain, or the one that FedAvg (uniform) serves worst


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """The finished runs in `folders`, each a run folder or a folder of run folders."""
    runs: list[Run] = []
    for folder in folders:
        check(folder.is_dir(), f"{folder} is not a folder")
        places = [folder] if (folder / "config.json").exists() else sorted(folder.iterdir())
        found = [_load(place) for place in places if (place / "summary.json").exists()]
        for run in found:
            check(
                "test" in run.summary,
                f"{run.folder} is a trial of a search: test is not measured",
            )
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
        first, *others = [as_table(run.config) | {"seed": None} for run in group]
        for other in others:
            difference = first_difference(first, other)
            check(
                difference is None, f"runs of {name} differ in more than their seed: {difference}"
            )
    domains: list[str] = runs[0].summary["domains"]
    metrics = list(runs[0].summary["test"][domains[0]])
    metrics.sort(key=lambda name: name != runs[0].config.metric)
    known = {m: _known_domains(runs, m) for m in metrics}
    higher = {metric: runs[0].higher_is_better(metric) for metric in metrics}
    rows = [_row(name, group, known, higher) for name, group in groups.items()]
    return Comparison(tasks[0], domains, metrics, rows, higher, _harder(rows, metrics[0]))


def _order(run: Run) -> tuple[float, ...]:
    """As the comparison has them; of one method, less and less of ε, plain uploads first."""
    return run.order, -run.epsilon, run.config.compress is not None, run.config.seed


def is_reference(algorithm: str) -> bool:
    """Whether a method is the one that others are measured against."""
    try:
        return find_method(algorithm).is_reference
    except BadInput:  # a method of somebody's own that this machine lacks
        return False


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
                "worst": {m: row.worst(m)._asdict() for m in row.cells},
                "difference": row.difference,
                "overall": {m: cell._asdict() for m, cell in row.overall.items()},
                "clients": {
                    m: {name: cell._asdict() for name, cell in cells.items()}
                    for m, cells in row.clients.items()
                },
                "bytes": row.runs[0].summary["bytes"],
                "config": as_table(row.runs[0].config),
            }
            for row in comparison.rows
        ],
    }


def _load(folder: Path) -> Run:
    try:
        config = from_table(read_json(folder / "config.json"), f"{folder / 'config.json'}")
        return Run(folder, config, read_json(folder / "summary.json"), read_records(folder))
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{folder} is not a readable run folder: {error}") from error


def _harder(rows: list[Row], metric: str) -> str | None:
    for row in rows:
        if row.target is not None:
            return row.target
    uniform = [row for row in rows if row.is_reference]
    return uniform[0].worst_domain(metric) if uniform else None


def _row(name: str, runs: list[Run], known: dict[str, list[str]], higher: dict[str, bool]) -> Row:
    cells = {
        m: {d: _cell(higher[m], [run.summary["test"][d][m] for run in runs]) for d in domains}
        for m, domains in known.items()
    }
    means = {m: [cell.mean for cell in cells[m].values()] for m in known}
    overall, clients = _on_test(runs, "overall"), _on_test(runs, "clients")
    return Row(
        name,
        runs,
        cells,
        difference={m: _difference(means[m]) for m in known},
        overall={m: _cell(higher[m], [values[m] for values in overall]) for m in known if overall},
        clients={
            m: {
                name: _cell(higher[m], [spreads[m][name] for spreads in clients])
                for name in clients[0][m]
            }
            for m in known
            if clients and m in clients[0]
        },
        higher_is_better=higher,
    )


def _known_domains(runs: Sequence[Run], metric: str) -> list[str]:
    """The domains of which any run has a value; if all runs diverged, all with test examples."""
    test = [run.summary["test"] for run in runs]
    known = [d for d in test[0] if any(results[d][metric] is not None for results in test)]
    return known or [d for d, number in runs[0].summary["examples"]["test"].items() if number > 0]


def _difference(means: Sequence[float]) -> float:
    return max(means) - min(means) if all(map(math.isfinite, means)) else math.inf


def _on_test(runs: list[Run], part: str) -> list[dict[str, Any]]:
    """What the summaries say of all test examples or clients; empty unless all of them do."""
    found = [run.summary[part]["test"] for run in runs if part in run.summary]
    return found if len(found) == len(runs) else []


def _cell(higher: bool, values: Iterable[float | None]) -> Cell:
    """A value that is missing where others have one was not finite: as bad as can be."""
    bad = -math.inf if higher else math.inf
    return cell([bad if value is None else value for value in values])


def cell(values: list[float]) -> Cell:
    """Mean and sample deviation."""
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return Cell(statistics.fmean(values), statistics.stdev(values) if finite else None, values)
