# SPDX-License-Identifier: Apache-2.0
"""How the worst domain fared while the models were trained, and what it cost to get there."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agnosticfl.report.basis import of_one_domain
from agnosticfl.report.comparison import Comparison, cell, seeds_text
from agnosticfl.report.grid import DASH, Entry, Grid, byte_unit, grid, number, places
from agnosticfl.report.means import known_mean
from agnosticfl.report.runs import Run
from agnosticfl.runs.records import bytes_of

TRAINING_LOOKS = 50  # the losses of a single round are of too few examples to tell a course by


class Curve(NamedTuple):
    """The worst domain's metric in the course of one run."""

    rounds: np.ndarray  # [looks]
    bytes: np.ndarray  # [looks] sent in both directions until then
    values: np.ndarray  # [looks]


class Progress(NamedTuple):
    """The curves of a comparison."""

    metric: str
    where: str  # on whose examples
    curves: dict[str, list[Curve]]  # algorithm's title -> one per seed; without those not measured


class Reach(NamedTuple):
    """From when on the runs of an algorithm stayed as good as the reference at its end."""

    rounds: list[float]  # of the seeds that reached it and kept it
    bytes: list[float]


def progress(comparison: Comparison) -> Progress:
    """On held-out clients if all runs looked at them, else the training losses.

    Target-only training sees the losses of one domain alone, so it has no curve of the latter.
    """
    runs = [run for row in comparison.rows for run in row.runs]
    if all(run.looks for run in runs):
        curves = {row.title: [_heldout(run) for run in row.runs] for row in comparison.rows}
        where = f"held-out clients{_behind(comparison)}"
        return Progress(comparison.metrics[0], where, curves)
    curves = {
        row.title: [_training(run) for run in row.runs]
        for row in comparison.rows
        if row.target is None
    }
    where = f"training clients (means over 1/{TRAINING_LOOKS} of the rounds)"
    return Progress("loss", where, curves)


def ends(comparison: Comparison, course: Progress) -> dict[int, float]:
    """Seed -> the last value of FedAvg (uniform), of its first row if privacy makes it several."""
    rows = [row for row in comparison.rows if row.is_reference]
    return {
        run.config.seed: float(curve.values[-1])
        for row in rows[:1]
        for run, curve in zip(row.runs, course.curves[row.title], strict=True)
    }


def reaches(comparison: Comparison, course: Progress) -> dict[str, Reach]:
    """What each algorithm needed to be as good as FedAvg (uniform) at its end, and to stay so.

    Each seed is held against the reference of the same seed, which had the same held-out clients.
    """
    last = ends(comparison, course)
    usual = statistics.fmean(last.values())
    higher = comparison.higher_is_better[course.metric]
    return {
        row.title: _reach(curves, [last.get(run.config.seed, usual) for run in row.runs], higher)
        for row in comparison.rows
        if (curves := course.curves.get(row.title))
    }


def costs(comparison: Comparison) -> list[Grid]:
    """The table of rounds and bytes to the reference's end, if the reference is there."""
    course = progress(comparison)
    if not ends(comparison, course):
        return []
    last = {title: cell([float(c.values[-1]) for c in cs]) for title, cs in course.curves.items()}
    decimals = places(end.mean for end in last.values())
    reached = reaches(comparison, course)
    rows = [
        [
            Entry(row.title),
            number(last.get(row.title), decimals),
            *_cost(reached.get(row.title), len(row.runs)),
        ]
        for row in comparison.rows
    ]
    caption = (
        f"{comparison.task}: rounds and bytes until the worst domain's {course.metric}, on"
        f" {course.where}, was as good as that of FedAvg (uniform) at its end, and stayed so"
        f"{seeds_text(comparison)}"
    )
    names = ("algorithm", f"{course.metric} at the end", "rounds to FedAvg's", "bytes to FedAvg's")
    missing = len(course.curves) < len(comparison.rows)
    return [grid(caption, names, rows, of_one_domain(comparison) if missing else ())]


def _behind(comparison: Comparison) -> str:
    """How many held-out examples there are, and of which domains none say anything."""
    examples: dict[str, int] = comparison.runs[0].summary.get("examples", {}).get("heldout", {})
    looks = [run.records[i]["heldout"] for run in comparison.runs for i in run.looks]
    absent = [d for d in comparison.domains if all(look[d]["loss"] is None for look in looks)]
    texts = [f"{sum(examples.values()):,} examples"] if examples else []
    if absent:
        noised = any(run.noised("heldout") for run in comparison.runs)
        why = "too few for the noise" if noised else "none"
        texts.append(f"{why} of {', '.join(map(repr, absent))}")
    return f" ({', '.join(texts)})" if texts else ""


def _cost(reach: Reach | None, seeds: int) -> list[Entry]:
    """Rounds and bytes."""
    if reach is None:
        return [Entry(DASH), Entry(DASH)]
    if not reach.rounds:
        return [Entry("not reached"), Entry("not reached")]
    some = f", {len(reach.rounds)} of {seeds} seeds" if len(reach.rounds) < seeds else ""
    rounds, sent = cell(reach.rounds), cell(reach.bytes)
    size, name = byte_unit(sent.mean)
    scaled = cell([value / size for value in reach.bytes])
    return [
        Entry(number(rounds, 0).text + some, rounds.mean),
        Entry(f"{number(scaled, places([scaled.mean])).text} {name}{some}", sent.mean),
    ]


def _reach(curves: Sequence[Curve], targets: Sequence[float], higher: bool) -> Reach:
    reach = Reach([], [])
    for curve, target in zip(curves, targets, strict=True):
        good = curve.values >= target if higher else curve.values <= target
        if good[-1]:
            first = int(np.flatnonzero(np.append(True, ~good))[-1])  # after the last that was not
            reach.rounds.append(float(curve.rounds[first]))
            reach.bytes.append(float(curve.bytes[first]))
    return reach


def _heldout(run: Run) -> Curve:
    metric = run.config.metric
    values, higher = run.heldout(metric), run.higher_is_better(metric)
    if not run.noised("heldout"):  # else noise hid what is not there, now and then
        known = ~np.isnan(values).all(axis=0)  # domains with held-out examples
        bad = -np.inf if higher else np.inf
        values = np.where(known & np.isnan(values), bad, values)  # diverged
    worst = (np.fmin if higher else np.fmax).reduce(values, axis=1)
    return Curve(run.series("round")[run.looks], _sent(run)[run.looks], worst)


def _training(run: Run) -> Curve:
    losses, number = run.series("loss"), len(run.records)
    parts = np.array_split(np.arange(number), min(number, TRAINING_LOOKS))
    worst = [np.fmax.reduce(known_mean(losses[part])) for part in parts]
    ends = [part[-1] for part in parts]
    return Curve(run.series("round")[ends], _sent(run)[ends], np.array(worst))


def _sent(run: Run) -> np.ndarray:
    return np.cumsum([sum(bytes_of(record)) for record in run.records])
