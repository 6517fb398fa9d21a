# SPDX-License-Identifier: Apache-2.0
"""The plots of a comparison: curves over rounds and bytes, λ, losses and counts by domain."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from agnosticfl.report.comparison import Comparison, Row
from agnosticfl.report.grid import byte_unit
from agnosticfl.report.means import known_mean
from agnosticfl.report.panels import (
    Band,
    Line,
    Panel,
    Plot,
    draw,
    settled,
    shortened,
    thin,
)
from agnosticfl.report.progress import Curve, ends, progress
from agnosticfl.report.runs import Run
from agnosticfl.report.tradeoffs import pareto, privacy

MANY = 6  # domains; of more, a plot shows the ends, the median and the band between
END = 0.1  # the part of the training that tells which domain is highest at the end
HIGHEST, LOWEST, MEDIAN = "highest at the end", "lowest at the end", "median of the domains"
ALL = "all domains"

Values: TypeAlias = Callable[[Run], np.ndarray]  # of a run, [points] or [points, p]


class Course(NamedTuple):
    """What a row shows of each domain."""

    lines: list[Line]
    band: Band | None
    names: str  # of the domains that the lines are of, where the legend does not say


def draw_plots(comparison: Comparison) -> Iterator[Plot]:
    """The plots that these runs allow."""
    if len(comparison.runs[0].summary.get("params", ())) == 1:
        yield _values(comparison)
    yield from _curves(comparison)
    measured = bool(comparison.known(comparison.metrics[0]))
    if measured and len(comparison.rows) > 2 and all(row.overall for row in comparison.rows):
        yield pareto(comparison)
    if measured and len({row.runs[0].epsilon for row in comparison.rows} - {math.inf}) > 1:
        yield privacy(comparison)
    yield _weights(comparison)
    yield from _losses(comparison)
    yield _counts(comparison)


def _values(comparison: Comparison) -> Plot:
    """The model, if it is one number."""
    lines = [
        Line(row.title, i, *_over_rounds(row, lambda run: run.series("params")[:, 0]))
        for i, row in enumerate(comparison.rows)
    ]
    return draw("value", "Learned value w over rounds", [Panel("", "w", lines)])


def _curves(comparison: Comparison) -> Iterator[Plot]:
    """The paper's communication figure: the worst domain's metric over rounds, and over bytes."""
    course = progress(comparison)
    if not course.curves:
        return
    quantity = f"{course.metric} of the worst domain"
    caption = f"{quantity[0].upper()}{quantity[1:]}, on {course.where}"
    last = ends(comparison, course)
    level = float(np.mean(list(last.values()))) if last else None
    if level is not None:
        caption += " (dotted: where FedAvg (uniform) ends)"

    def panel(x: Callable[[Curve], np.ndarray]) -> Panel:
        lines = [
            Line(row.title, i, [thin(x(c)) for c in curves], [thin(c.values) for c in curves])
            for i, row in enumerate(comparison.rows)
            if (curves := course.curves.get(row.title))
        ]
        return Panel("", quantity, lines, settled(lines), level)

    most = max(float(c.bytes[-1]) for curves in course.curves.values() for c in curves)
    size, name = byte_unit(most)
    yield draw("curves", f"{caption}, over rounds", [panel(lambda c: c.rounds)])
    yield draw(
        "bytes",
        f"{caption}, over bytes: all clients, both directions",
        [panel(lambda c: c.bytes / size)],
        x=f"communication ({name})",
    )


def _weights(comparison: Comparison) -> Plot:
    rows = [row for row in comparison.rows if row.runs[0].follows_losses] or comparison.rows[:1]
    courses = {
        row.title: _by_domain(comparison, row, lambda run: run.series("domain_weights"))
        for row in rows
    }
    limits = (0.0, 1.05 * max(_highest(course) for course in courses.values()))
    return _by_row("weights", "Domain weights λ over rounds", "λ", courses, limits)


def _losses(comparison: Comparison) -> Iterator[Plot]:
    """Training and held-out losses, to be seen side by side: panel by panel on the same scale."""
    train = {
        row.title: _by_domain(comparison, row, lambda run: run.series("loss"))
        for row in comparison.rows
    }
    heldout = {
        row.title: _by_domain(
            comparison,
            row,
            lambda run: run.heldout("loss"),
            lambda run: run.rounds()[run.looks],
        )
        for row in comparison.rows
        if all(run.looks for run in row.runs)
    }
    lines = [line for some in (train, heldout) for course in some.values() for line in course.lines]
    for name, what, courses in (("train", "Training", train), ("heldout", "Held-out", heldout)):
        if courses:
            caption = f"{what} loss of each domain over rounds"
            yield _by_row(name, caption, "loss", courses, settled(lines))


def _counts(comparison: Comparison) -> Plot:
    row = next((row for row in comparison.rows if row.target is None), comparison.rows[0])
    course = _by_domain(comparison, row, lambda run: run.series("count"))
    means = [mean for line in course.lines if (mean := float(np.mean(line.y))) > 0]
    uneven = max(means, default=1) > 20 * min(means, default=1)
    caption = f"Examples of each domain per round, {row.title}"
    title = "\n".join(filter(None, (row.title, course.names)))  # the plot may go without its page
    panel = Panel(title, "examples per round", course.lines, log=uneven, band=course.band)
    return draw("counts", caption + _many_text(course), [panel])


def _by_row(
    name: str,
    caption: str,
    quantity: str,
    courses: dict[str, Course],
    limits: tuple[float, float] | None,
) -> Plot:
    panels = [
        Panel(
            "\n".join(filter(None, (title, course.names))),
            quantity,
            course.lines,
            limits,
            band=course.band,
        )
        for title, course in courses.items()
    ]
    return draw(name, caption + _many_text(next(iter(courses.values()))), panels)


def _many_text(course: Course) -> str:
    if course.band is None:
        return ""
    return "; the grey band lies between the lowest and the highest domain, all as means over seeds"


def _by_domain(
    comparison: Comparison, row: Row, values: Values, rounds: Values = Run.rounds
) -> Course:
    """A line for each domain or, of many, those that end highest and lowest, without seeds."""
    x, y = _over_rounds(row, values, rounds)
    if len(comparison.domains) <= MANY:
        lines = [
            Line(domain, i, x, [own[:, i] for own in y])
            for i, domain in enumerate(comparison.domains)
        ]
        return Course(lines, None, "")
    mean = known_mean(np.stack(y))  # [points, p]
    last = known_mean(mean[-max(1, round(END * len(mean))) :])
    high, low = (int(np.argmax(np.where(np.isnan(last), -np.inf, s * last))) for s in (1, -1))
    lines = [
        Line(HIGHEST, 1, [x[0]], [mean[:, high]]),
        Line(MEDIAN, 2, [x[0]], [_median(mean)]),
        Line(LOWEST, 0, [x[0]], [mean[:, low]]),
    ]
    band = Band(ALL, x[0], np.fmin.reduce(mean, axis=1), np.fmax.reduce(mean, axis=1))
    highest, lowest = (shortened(comparison.domains[i], 20) for i in (high, low))
    return Course(lines, band, f"highest {highest}, lowest {lowest}")


def _over_rounds(
    row: Row, values: Values, rounds: Values = Run.rounds
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """x and y of each seed."""
    return [thin(rounds(run)) for run in row.runs], [thin(values(run)) for run in row.runs]


def _median(values: np.ndarray) -> np.ndarray:
    """[points, p] -> [points], of the domains that were there."""
    known = [point[~np.isnan(point)] for point in values]
    return np.array([np.median(point) if len(point) else np.nan for point in known])


def _highest(course: Course) -> float:
    return max(float(np.nanmax(y)) for line in course.lines for y in line.y)
