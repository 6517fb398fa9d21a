# SPDX-License-Identifier: Apache-2.0
"""Pictures of what fairness and privacy cost."""

import math
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from agnosticfl.report.comparison import Cell, Comparison
from agnosticfl.report.drawing import (
    COLOURS,
    STYLE,
    WIDTH,
    Plot,
    add_legend,
    legend_height,
)
from agnosticfl.runs.resolve import title

MARKERS = ("o", "s", "^", "D", "v")  # five against seven colours: 35 pairs


def pareto(comparison: Comparison) -> Plot:
    """Fairness against utility: the worst domain's metric over the average of all test examples."""
    metric = comparison.metrics[0]
    sign = 1 if comparison.higher_is_better[metric] else -1
    points = [(row.overall[metric], row.worst[metric]) for row in comparison.rows]
    means = np.array([[average.mean, lowest.mean] for average, lowest in points])
    near = close_up(sign * means)
    with mpl.rc_context(STYLE):
        height = 3.2 + legend_height(row.title for row in comparison.rows)
        height += 0 if near is None else 2.8
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
        for axes in panels:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        panels[-1].set_xlabel(f"{metric} over all test examples")
        add_legend(figure, _handles(panels[0]))
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
        lowest = row.worst[metric]
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
        add_legend(figure, _handles(axes))
    caption = f"Test {metric} of the worst domain against ε (dotted: without privacy)"
    return Plot("privacy", caption, figure)


def _handles(axes: Axes) -> dict[str, Any]:
    handles, names = axes.get_legend_handles_labels()
    return dict(zip(names, handles, strict=True))


def undominated(points: np.ndarray) -> np.ndarray:
    """[n] whether no other of the points [n, 2] is at least as high in both and higher in one."""
    here, other = points[:, None], points[None]
    beaten = np.all(other >= here, axis=2) & np.any(other > here, axis=2)
    return ~beaten.any(axis=1)
