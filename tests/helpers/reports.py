# SPDX-License-Identifier: Apache-2.0
"""Runs to report on, with numbers that nobody trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from agnosticfl.core.evaluate import Measured
from agnosticfl.core.metrics import Metric, Reading
from agnosticfl.report.runs import Run
from agnosticfl.runs.predictions import Predictions
from agnosticfl.runs.resolve import resolve

# A metric that no sums tell, under a name by which a report finds it.
LARGEST = "tests.helpers.reports:largest"
largest = Metric(
    LARGEST, "values", Reading(True), exact=lambda outputs, _wanted, _weight: float(outputs.max())
)


def synthetic_run(algorithm: str, seed: int, values: Sequence[float], **changes: Any) -> Run:
    """A run with given test losses for two domains."""
    target = "b" if algorithm == "fedavg-target" else None
    config = resolve("toy", algorithm, target, seed)
    record = {"round": 1, "loss": list(values), "domain_weights": [0.5, 0.5], "count": [3, 1]}
    record |= {"bytes_down": 1, "bytes_up": 2, "seconds": 0.25}
    summary: dict[str, Any] = {
        "domains": ["a", "b"],
        "test": {"a": {"loss": values[0]}, "b": {"loss": values[1]}},
        "bytes": {"down_per_round": 1, "up_per_round": 2, "paper_per_round": 3},
        "environment": {},
        **changes,
    }
    return Run(Path(), config, summary, [record])


def course(
    algorithm: str, seed: int, domains: Sequence[str], losses: Sequence[float], rounds: int = 3
) -> Run:
    """A run of any domains whose losses stay as they are, with a look in every round."""
    run = synthetic_run(algorithm, seed, [0.0, 0.0])
    values = {d: {"loss": v} for d, v in zip(domains, losses, strict=True)}
    share = [1 / len(domains)] * len(domains)
    record = {**run.records[0], "loss": list(losses), "domain_weights": share, "heldout": values}
    record |= {"count": [2] * len(domains)}
    summary = {**run.summary, "domains": list(domains), "test": values}
    summary["examples"] = {"test": dict.fromkeys(domains, 12_345)}
    records = [record | {"round": t} for t in range(1, rounds + 1)]
    return run._replace(summary=summary, records=records)


def said(losses: ArrayLike, client: ArrayLike, domain: ArrayLike, **changes: Any) -> Predictions:
    """What a model did on single examples of two domains."""
    values, clients = np.array(losses, float), np.array(client)
    sums = {"loss": np.stack([values, np.ones_like(values)])}
    measured = Measured(clients, np.array(domain), sums)._replace(**changes)
    ids = np.array([f"client {k}" for k in range(clients.max() + 1)])
    return Predictions(measured, ids, ("a", "b"))


def run_of(algorithm: str, seed: int, predictions: Predictions) -> Run:
    """A run whose summary says what these predictions do."""
    measured = predictions.measured
    total, weight = measured.sums["loss"]
    means = [
        float(total[own].sum() / weight[own].sum())
        for own in (measured.domain == d for d in (0, 1))
    ]
    overall = {"test": {"loss": float(total.sum() / weight.sum())}}
    return synthetic_run(algorithm, seed, means, overall=overall)
