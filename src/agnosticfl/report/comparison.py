# SPDX-License-Identifier: Apache-2.0
"""Finished runs of one task, those of an algorithm put together."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.errors import check
from agnosticfl.report.runs import Run
from agnosticfl.runs.config import as_table, first_difference
from agnosticfl.runs.resolve import title

Interval: TypeAlias = tuple[float, float]  # lower and upper end of 95 %


class Cell(NamedTuple):
    """A mean over seeds."""

    mean: float
    std: float | None  # of the sample; None for a single seed
    values: list[float]
    interval: Interval | None = None  # of the mean, were other test clients asked


class Against(NamedTuple):
    """How far a row is from the reference's, on the same resampled clients."""

    worst: Interval | None
    difference: Interval | None

    @property
    def stands_out(self) -> bool:
        """Whether the worst domain's metric is another one whichever clients are asked."""
        return self.worst is not None and not self.worst[0] <= 0 <= self.worst[1]


class Row(NamedTuple):
    """One algorithm in a comparison."""

    title: str
    runs: list[Run]
    cells: dict[str, dict[str, Cell]]  # metric -> domain -> cell, for domains with a value
    worst: dict[str, Cell]  # metric -> mean over runs of each one's own worst domain
    difference: dict[str, Cell]  # metric -> the same of its best domain's distance from its worst
    worst_domains: dict[str, list[str]]  # metric -> each run's worst domain
    overall: dict[str, Cell]  # metric -> cell over all test examples
    clients: dict[str, dict[str, Cell]]  # metric -> "variance", "worst_tenth" -> cell; if asked for
    against: dict[str, Against]  # metric -> how far from the reference's; empty for the reference

    @property
    def algorithm(self) -> str:
        return self.runs[0].config.algorithm

    @property
    def is_reference(self) -> bool:
        """Whether the others are measured against it."""
        return self.runs[0].is_reference

    @property
    def target(self) -> str | None:
        """The one domain that target-only training sees."""
        return self.runs[0].config.target

    def worst_domain(self, metric: str) -> str | None:
        """The domain that most runs serve worst; of equals, the first run's."""
        return statistics.mode(self.worst_domains[metric]) if metric in self.worst else None


class Bootstrap(NamedTuple):
    """How the intervals were made, or why there are none."""

    resamples: dict[str, int]  # metric -> how many
    over_examples: list[str]  # domains of too few clients, whose examples are resampled instead
    few_clients: list[str]  # the same where examples were not kept one by one
    missing: dict[str, str]  # metric -> why it has no interval
    clients: int | None = None  # with test examples


class Comparison(NamedTuple):
    task: str
    which: str  # model of each run: "last", "best" or "mean"
    domains: list[str]
    metrics: list[str]  # the one that tells the worst domain first
    rows: list[Row]
    higher_is_better: dict[str, bool]  # metric -> which way is better
    harder: str | None  # the target's domain, or the one that FedAvg (uniform) serves worst
    bootstrap: Bootstrap = Bootstrap({}, [], [], {})

    @property
    def reference(self) -> Row:
        """The row that others are held against: FedAvg (uniform), or the first."""
        return next((row for row in self.rows if row.is_reference), self.rows[0])

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]

    def known(self, metric: str) -> list[str]:
        """The domains that have a value."""
        return list(self.rows[0].cells[metric])


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Runs of one task, grouped by algorithm in the paper's order."""
    tasks = sorted({run.config.task for run in runs})
    check(len(tasks) == 1, f"runs of different tasks cannot be compared: {', '.join(tasks)}")
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_order):
        groups.setdefault(title(run.config), []).append(run)
    for name, group in groups.items():
        _check_group(name, group)
    domains: list[str] = runs[0].summary["domains"]
    metrics = list(runs[0].summary["test"][domains[0]])
    metrics.sort(key=lambda name: name != runs[0].config.metric)
    known = {m: _known_domains(runs, m) for m in metrics}
    higher = {metric: runs[0].higher_is_better(metric) for metric in metrics}
    rows = [_row(name, group, known, higher) for name, group in groups.items()]
    harder = _harder(rows, metrics[0])
    return Comparison(tasks[0], runs[0].which, domains, metrics, rows, higher, harder)


def _check_group(name: str, group: list[Run]) -> None:
    seeds = [run.config.seed for run in group]
    check(len(set(seeds)) == len(seeds), f"two runs of {name} have the same seed: {seeds}")
    first, *others = [as_table(run.config) | {"seed": None} for run in group]
    for other in others:
        difference = first_difference(first, other)
        check(difference is None, f"runs of {name} differ in more than their seed: {difference}")


def _order(run: Run) -> tuple[float, ...]:
    """As the comparison has them; of one method, less and less of ε, plain uploads first."""
    return run.order, -run.epsilon, run.config.compress is not None, run.config.seed


def seeds_text(comparison: Comparison) -> str:
    """What a caption says of the numbers below it."""
    numbers = sorted({len(row.runs) for row in comparison.rows})
    if numbers == [1]:
        return ""
    return f", mean (standard deviation) of {' to '.join(map(str, numbers))} seeds"


def model_text(comparison: Comparison) -> str:
    """Which model of each run the numbers are of; "" for the last, which nobody has to be told."""
    if comparison.which == "last":
        return ""
    if comparison.which == "mean":
        return " of the mean of the models of all rounds"
    rounds = sorted({run.round for run in comparison.runs})
    from_to = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
    return (
        " of the model that served its worst held-out domain best"
        f" (from round{'s' * (len(rounds) > 1)} {from_to})"
    )


def cell(values: list[float]) -> Cell:
    """Mean and sample deviation."""
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return Cell(statistics.fmean(values), statistics.stdev(values) if finite else None, values)


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
    measured = {m: cells[m] for m in known if cells[m]}
    overall, clients = _on_test(runs, "overall"), _on_test(runs, "clients")
    return Row(
        name,
        runs,
        cells,
        worst={m: cell(_each_run(min if higher[m] else max, c)) for m, c in measured.items()},
        difference={m: cell(_each_run(_difference, c)) for m, c in measured.items()},
        worst_domains={m: _worst_domains(higher[m], c) for m, c in measured.items()},
        overall={
            m: _cell(higher[m], [values[m] for values in overall])
            for m in measured
            if overall and not _hides(runs, [values[m] for values in overall])
        },
        clients={
            m: {
                name: _cell(higher[m], [spreads[m][name] for spreads in clients])
                for name in clients[0][m]
            }
            for m in known
            if clients and m in clients[0]
        },
        against={},
    )


def _each_run(pick: Callable[[Sequence[float]], float], cells: dict[str, Cell]) -> list[float]:
    """What `pick` makes of the domains of each run."""
    return [pick(values) for values in zip(*(c.values for c in cells.values()), strict=True)]


def _worst_domains(higher: bool, cells: dict[str, Cell]) -> list[str]:
    pick, seeds = (min if higher else max), range(len(next(iter(cells.values())).values))
    return [pick(cells, key=lambda domain: cells[domain].values[i]) for i in seeds]


def _known_domains(runs: Sequence[Run], metric: str) -> list[str]:
    """The domains of which any run has a value, or of which no run has even a finite loss.

    The others have no test examples, or none that the metric is defined on, or noise hides them in
    one of the runs: then they are left out of the worst of all rows, or rows could not be compared.
    """
    test = [run.summary["test"] for run in runs]

    def known(domain: str) -> bool:
        if any(is_hidden(run, domain, metric) for run in runs):
            return False
        there = runs[0].test_examples.get(domain, 0) > 0
        exploded = there and all(results[domain].get("loss") is None for results in test)
        return exploded or any(results[domain][metric] is not None for results in test)

    return [domain for domain in test[0] if known(domain)]


def is_told(run: Run, metric: str) -> bool:
    """Whether test clients are asked for a metric: each that is noised costs the others."""
    return not run.noised("test") or metric in ("loss", run.config.metric)


def is_hidden(run: Run, domain: str, metric: str) -> bool:
    """Whether noise hides what the test clients of a private run say of a domain."""
    return _hides([run], [run.summary["test"][domain][metric]])


def _hides(runs: Sequence[Run], values: Sequence[float | None]) -> bool:
    """Whether a value is missing of a run whose noise is to blame; else the model exploded."""
    return any(v is None and run.noised("test") for run, v in zip(runs, values, strict=True))


def _difference(values: Sequence[float]) -> float:
    return max(values) - min(values) if all(map(math.isfinite, values)) else math.inf


def _on_test(runs: list[Run], part: str) -> list[dict[str, Any]]:
    """What the summaries say of all test examples or clients; empty unless all of them do."""
    found = [run.summary[part]["test"] for run in runs if part in run.summary]
    return found if len(found) == len(runs) else []


def _cell(higher: bool, values: Iterable[float | None]) -> Cell:
    """A value that is missing where others have one was not finite: as bad as can be."""
    bad = -math.inf if higher else math.inf
    return cell([bad if value is None else value for value in values])
