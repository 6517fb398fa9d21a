# SPDX-License-Identifier: Apache-2.0
"""`comparison.json`: the numbers behind the tables, for programs."""

from typing import Any

from agnosticfl.report.basis import notes
from agnosticfl.report.comparison import Cell, Comparison, Row
from agnosticfl.runs.config import as_table


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything that the tables show."""
    summary, how = comparison.runs[0].summary, comparison.bootstrap
    return {
        "task": comparison.task,
        "which": comparison.which,
        "domains": comparison.domains,
        "metrics": comparison.metrics,
        "higher_is_better": comparison.higher_is_better,
        "reference": comparison.reference.title,
        "test_examples": comparison.runs[0].test_examples,
        "test_clients": summary.get("clients_with", {}).get("test"),
        "classes": summary.get("classes"),
        "intervals": {
            "resamples": how.resamples,
            "over_examples": how.over_examples,
            "few_clients": how.few_clients,
            "missing": how.missing,
        },
        "notes": {metric: notes(comparison, metric) for metric in comparison.metrics},
        "algorithms": [_row(comparison, row) for row in comparison.rows],
    }


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    return {
        "title": row.title,
        "algorithm": row.algorithm,
        "target": row.target,
        "seeds": [run.config.seed for run in row.runs],
        "rounds": [run.round for run in row.runs],
        "worst": {
            metric: cell._asdict()
            | {"domain": row.worst_domain(metric), "domains": row.worst_domains[metric]}
            for metric, cell in row.worst.items()
        },
        "difference": _cells(row.difference),
        "overall": _cells(row.overall),
        "test": {
            metric: dict.fromkeys(comparison.domains) | _cells(cells)
            for metric, cells in row.cells.items()
        },
        "clients": {metric: _cells(cells) for metric, cells in row.clients.items()},
        "against_reference": {metric: ends._asdict() for metric, ends in row.against.items()},
        "bytes": row.runs[0].summary["bytes"],
        "config": as_table(row.runs[0].config),
    }


def _cells(cells: dict[str, Cell]) -> dict[str, Any]:
    return {name: cell._asdict() for name, cell in cells.items()}
