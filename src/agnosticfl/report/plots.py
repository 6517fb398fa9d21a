# SPDX-License-Identifier: Apache-2.0
"""Curves over rounds and bytes: every seed, their mean, and the band between the extremes."""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agnosticfl.report.grid import byte_unit
from agnosticfl.report.progress import Curve, ends, progress
from agnosticfl.report.runs import Cell, Comparison, Row
from agnosticfl.runs.resolve import title

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "none",  # the page's, light or dark
    "axes.facecolor": "none",
    "grid.color": "#80808040",
    "font.size": 10,
    "legend.frameon": False,
    "svg.hashsalt": "agnosticfl",  # the same data gives the same file
}
# Okabe and Ito's colours, told apart by most colour-blind readers; dashes help the others.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v")  # five against seven colours: 35 pairs
WIDTH = 4.8  # inches: text of 10 points can still be read when a phone shows the whole width
POINTS = 100  # on a curve; of more rounds, neighbours are averaged
SETTLED = 0.1  # the part of a training that is left out when the range of an axis is chosen

# Coordinates of paths with more than two decimals: half of a file, and nothing to see.
_PATH, _LONG = re.compile(rb' d="[^"]*"'), re.compile(rb"(\.\d\d)\d+")


class Plot(NamedTuple):
    name: str  # of its file
    caption: str
    figure: Figure


class Line(NamedTuple):
    """One quantity in the course of the training."""

    label: str
    number: int  # chooses colour and dashes, so that an algorithm keeps its own from plot to plot
    x: list[np.ndarray]  # one per seed
    y: list[np.ndarray]


class Panel(NamedTuple):
    """The lines in one pair of axes; figures have them one below the other."""

    title: str
    quantity: str
    lines: list[Line]
    limits: tuple[float, float] | None = None  # of y
    level: float | None = None  # a horizontal line
    log: bool = False


def draw_plots(comparison: Comparison) -> Iterator[Plot]:
    """The plots that these runs allow."""
    if "params" in comparison.rows[0].runs[0].summary:
        yield _values(comparison)
    yield from _curves(comparison)
    if len(comparison.rows) > 2 and all(row.overall for row in comparison.rows):
        yield pareto(comparison)
    if len({row.runs[0].epsilon for row in comparison.rows} - {math.inf}) > 1:
        yield privacy(comparison)
    yield _weights(comparison)
    yield from _losses(comparison)
    yield _counts(comparison)


def save(plot: Plot, folder: Path) -> None:
    """As PNG, on white, and as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    plot.figure.savefig(folder / f"{plot.name}.png", dpi=150, facecolor="white")
    (folder / f"{plot.name}.svg").write_bytes(svg(plot))


def svg(plot: Plot) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _PATH.sub(lambda path: _LONG.sub(rb"\1", path[0]), buffer.getvalue())


def _values(comparison: Comparison) -> Plot:
    lines = [_by_round(row, "params", 0, row.title, i) for i, row in enumerate(comparison.rows)]
    return _plot("value", "Learned value w over rounds", [Panel("", "w", lines)])


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
            Line(row.title, i, [_thin(x(c)) for c in curves], [_thin(c.values) for c in curves])
            for i, row in enumerate(comparison.rows)
            if (curves := course.curves.get(row.title))
        ]
        return Panel("", quantity, lines, _settled(lines), level)

    most = max(float(c.bytes[-1]) for curves in course.curves.values() for c in curves)
    size, name = byte_unit(most)
    yield _plot("curves", f"{caption}, over rounds", [panel(lambda c: c.rounds)])
    yield _plot(
        "bytes",
        f"{caption}, over bytes: all clients, both directions",
        [panel(lambda c: c.bytes / size)],
        x=f"communication ({name})",
    )


def pareto(comparison: Comparison) -> Plot:
    """Fairness against utility: the worst domain's metric over the average of all test examples."""
    metric = comparison.metrics[0]
    sign = 1 if comparison.higher_is_better[metric] else -1
    points = [(row.overall[metric], row.worst(metric)) for row in comparison.rows]
    means = np.array([[average.mean, lowest.mean] for average, lowest in points])
    near = close_up(sign * means)
    with mpl.rc_context(STYLE):
        height = 3.2 + 0.2 * ((len(points) + 1) // 2) + (0 if near is None else 2.8)
        figure = Figure((WIDTH, height), layout="constrained")
        panels = figure.subplots(1 if near is None else 2, squeeze=False)[:, 0]
        best = means[undominated(sign * means)]
        for axes in panels:
            axes.plot(*best[np.argsort(best[:, 0])].T, color="#808080", linewidth=1, zorder=1)
            for i, (row, (average, lowest)) in enumerate(zip(comparison.rows, points, strict=True)):
                color, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
                if len(average.values) > 1:
                    axes.scatter(average.values, lowest.values, s=6, color=color, alpha=0.5)
                label = row.title if axes is panels[0] else None
                axes.scatter(*means[i], s=45, color=color, marker=marker, label=label, zorder=2)
            axes.set_ylabel(f"{metric} of the worst domain")
        if near is not None:
            low, high = means[near].min(axis=0), means[near].max(axis=0)
            margin = 0.15 * (high - low)
            panels[1].set_xlim(low[0] - margin[0], high[0] + margin[0])
            panels[1].set_ylim(low[1] - margin[1], high[1] + margin[1])
            panels[1].set_title("The better half, closer")
        panels[-1].set_xlabel(f"{metric} over all test examples")
        figure.legend(loc="outside upper left", ncols=2)
    better = "higher" if sign == 1 else "lower"
    caption = (
        f"Test {metric} of the worst domain against the average, {better} is better in both;"
        " the line joins the algorithms that no other beats in both"
    )
    return Plot("pareto", caption, figure)


def close_up(points: np.ndarray) -> np.ndarray | None:
    """[n] the half of the points [n, 2] with the highest second number, if it lies in a corner.

    None if the others leave it room enough: a third of the picture or more in both directions.
    """
    near = points[:, 1] >= np.median(points[:, 1])
    if not np.isfinite(points[near]).all():
        return None
    room = np.ptp(points[np.isfinite(points).all(axis=1)], axis=0)
    return near if np.all(np.ptp(points[near], axis=0) < room / 3) and near.sum() > 2 else None


def privacy(comparison: Comparison) -> Plot:
    """Utility against ε; a dotted line is the same algorithm without privacy."""
    metric = comparison.metrics[0]
    points: dict[str, list[tuple[float, Cell]]] = {}  # algorithm -> ε, the worst domain's cell
    for row in comparison.rows:
        name = title(msgspec.structs.replace(row.runs[0].config, dp=None))
        lowest = row.worst(metric)
        points.setdefault(name, []).append((row.runs[0].epsilon, lowest))
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        for i, (name, own) in enumerate(points.items()):
            color, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            means = np.array([[e, cell.mean] for e, cell in own if e < math.inf]).reshape(-1, 2)
            axes.plot(*means.T, color=color, marker=marker, label=name)
            for epsilon, cell in own:
                if epsilon < math.inf:
                    many = [epsilon] * len(cell.values)
                    axes.scatter(many, cell.values, s=6, color=color, alpha=0.5)
                else:
                    axes.axhline(cell.mean, color=color, linestyle=":", linewidth=1)
        budgets = sorted({row.runs[0].epsilon for row in comparison.rows} - {math.inf})
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("ε")
        axes.set_ylabel(f"{metric} of the worst domain")
        figure.legend(loc="outside upper left", ncols=2)
    caption = f"Test {metric} of the worst domain against ε (dotted: without privacy)"
    return Plot("privacy", caption, figure)


def undominated(points: np.ndarray) -> np.ndarray:
    """[n] whether no other of the points [n, 2] is at least as high in both and higher in one."""
    here, other = points[:, None], points[None]
    beaten = np.all(other >= here, axis=2) & np.any(other > here, axis=2)
    return ~beaten.any(axis=1)


def _weights(comparison: Comparison) -> Plot:
    rows = [row for row in comparison.rows if row.runs[0].follows_losses]
    panels = [
        Panel(row.title, "λ", _by_domain(comparison, row, "domain_weights"), limits=(0, 1))
        for row in rows or comparison.rows[:1]
    ]
    return _plot("weights", "Domain weights λ over rounds", panels)


def _losses(comparison: Comparison) -> Iterator[Plot]:
    """Training and held-out losses, to be seen side by side: panel by panel on the same scale."""
    train = {row.title: _by_domain(comparison, row, "loss") for row in comparison.rows}
    heldout = {
        row.title: [
            Line(
                domain,
                i,
                [run.series("round")[run.looks] for run in row.runs],
                [run.heldout("loss")[:, i] for run in row.runs],
            )
            for i, domain in enumerate(comparison.domains)
        ]
        for row in comparison.rows
        if all(run.looks for run in row.runs)
    }
    limits = _settled([line for some in (train, heldout) for ls in some.values() for line in ls])
    for name, what, lines in (("train", "Training", train), ("heldout", "Held-out", heldout)):
        if lines:
            panels = [Panel(title, "loss", some, limits) for title, some in lines.items()]
            yield _plot(name, f"{what} loss of each domain over rounds", panels)


def _counts(comparison: Comparison) -> Plot:
    row = next((row for row in comparison.rows if row.target is None), comparison.rows[0])
    lines = _by_domain(comparison, row, "count")
    means = [mean for line in lines if (mean := float(np.mean(line.y))) > 0]
    uneven = max(means, default=1) > 20 * min(means, default=1)
    caption = f"Examples of each domain in a round over rounds, {row.title}"
    return _plot("counts", caption, [Panel("", "examples per round", lines, log=uneven)])


def _by_domain(comparison: Comparison, row: Row, name: str) -> list[Line]:
    return [_by_round(row, name, i, domain, i) for i, domain in enumerate(comparison.domains)]


def _by_round(row: Row, name: str, column: int, label: str, number: int) -> Line:
    rounds = [_thin(run.series("round")) for run in row.runs]
    return Line(label, number, rounds, [_thin(run.series(name)[:, column]) for run in row.runs])


def _thin(curve: np.ndarray) -> np.ndarray:
    """At most `POINTS` points, each the mean of its neighbourhood."""
    parts = np.array_split(curve, min(len(curve), POINTS))
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])


def _settled(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The range of all values but those of the first rounds, which would make the rest flat."""
    late = [
        y[(x > SETTLED * x[-1]) & np.isfinite(y)]
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
    ]
    values = np.concatenate([*late, np.zeros(0)])
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _plot(name: str, caption: str, panels: Sequence[Panel], x: str = "round") -> Plot:
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    legend_rows = (len(labels) + 1) // 2
    each = 2.8 if len(panels) == 1 else 2.1
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, 0.4 + each * len(panels) + 0.2 * legend_rows), layout="constrained")
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw(axes, panel)
        all_axes[-1].set_xlabel(x)
        handles = {
            text: handle
            for axes in all_axes
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles, loc="outside upper left", ncols=2)
    return Plot(name, caption, figure)


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    if panel.level is not None:
        axes.axhline(panel.level, color="#808080", linestyle=":", linewidth=1)
    if panel.log:
        axes.set_yscale("log")
    if panel.limits:
        axes.set_ylim(panel.limits)
    axes.set_title(panel.title)
    axes.set_ylabel(panel.quantity)


def _draw_line(axes: Axes, line: Line) -> None:
    """All seeds thin, the range between the lowest and the highest pale, the mean on top."""
    color, seeds = COLOURS[line.number % len(COLOURS)], np.array(line.y)
    x = np.mean(line.x, axis=0)
    if len(seeds) > 1:
        low, high = seeds.min(axis=0), seeds.max(axis=0)
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        for own_x, y in zip(line.x, seeds, strict=True):
            axes.plot(own_x, y, color=color, alpha=0.45, linewidth=0.6)
    style = DASHES[line.number % len(DASHES)]
    axes.plot(x, seeds.mean(axis=0), color=color, linestyle=style, linewidth=1.8, label=line.label)
