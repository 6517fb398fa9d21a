# SPDX-License-Identifier: Apache-2.0
"""Reference losses for `excess-risk`: what a model for one domain alone comes to."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agnosticfl.core.federated import Splits
from agnosticfl.errors import check
from agnosticfl.files import write_whole
from agnosticfl.registry import SOURCES
from agnosticfl.runs.compare import Runner
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.tasks import parse_set, put_dotted, task_table, task_text
from agnosticfl.runs.tuned_task import tuned_file, tuned_task

METHOD, ALONE = "excess-risk", "fedavg-target"
END = 0.1  # the part of a run whose training losses count


def find_references(
    task: str,
    out: Path,
    run: Runner,
    *,
    rounds: int | None = None,
    seed: int = 0,
    sets: Sequence[str] = (),
) -> dict[str, float]:
    """Trains on each domain alone, in folders below `out`, and returns the losses it came to.

    They are measured where λ looks: on held-out clients, after the last round, if
    `weights_follow` says so, else as the mean training loss of the last tenth of the rounds.

    Args:
      run: what to do with each configuration (`runs.run.run` with its options filled in).
    """
    asked = resolve(task, METHOD, None, seed, rounds, [*sets, *_empty()])
    data: Splits = SOURCES.build(asked.data, "data")
    by_heldout = asked.weights_follow == "heldout"
    check(
        not by_heldout or data.heldout is not None,
        "weights_follow is 'heldout', but the data has no split 'heldout'",
    )
    found: dict[str, float] = {}
    for number, domain in enumerate(data.train.domains):
        folder = out / f"domain{number}"
        summary = run(resolve(task, ALONE, domain, seed, rounds, sets), folder)
        found[domain] = _heldout(summary, domain) if by_heldout else _training_loss(folder, number)
        check(
            math.isfinite(found[domain]) and summary["diverged"] is None,
            f"the run on {domain} alone diverged, so it has no reference loss;"
            f" try a smaller learning rate for {ALONE}",
        )
    return found


def write_references(
    task: str, out: Path, found: Mapping[str, float], sets: Sequence[str] = ()
) -> Path:
    """Writes the task with these references in it, ready to run; returns its file."""
    table = task_table(task)
    for key, value in map(parse_set, sets):
        put_dotted(table, key, value)
    settings = {METHOD: {"options": {"references": dict(found)}}}
    notes = {METHOD: ["The loss of a model for each domain alone: `agnosticfl references`."]}
    file = tuned_file(out, task)
    write_whole(file, tuned_task(task_text(task), table, settings, notes))
    return file


def _empty() -> list[str]:
    """What lets the method be looked at before its references are known."""
    return [f"algorithms.{METHOD}.options.references={{}}"]


def _heldout(summary: Mapping[str, Any], domain: str) -> float:
    loss = summary["heldout"][domain]["loss"]
    check(loss is not None, f"held-out clients have no example of {domain}: it has no reference")
    return float(loss)


def _training_loss(folder: Path, number: int) -> float:
    losses = [record["loss"][number] for record in read_records(folder)]
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known[-max(round(END * len(known)), 1) :])
