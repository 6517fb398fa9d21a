# SPDX-License-Identifier: Apache-2.0
"""Runs to report on, with numbers that nobody trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agnosticfl.report.runs import Run
from agnosticfl.runs.resolve import resolve


def made_up(algorithm: str, seed: int, values: Sequence[float], **changes: Any) -> Run:
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
