# SPDX-License-Identifier: Apache-2.0
"""How algorithms are drawn as spots between two quantities."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from agnosticfl.report.drawing import COLOURS, STYLE, WIDTH, add_legend, legend_height
from agnosticfl.report.panels import Spot

MARKERS = ("o", "s", "^", "D", "v")  # five against seven colours: 35 pairs


def paint_pareto(
    spots: Sequence[Spot], unbeaten: np.ndarray, near: np.ndarray | None, metric: str
) -> Figure:
    """The worst domain's metric over the average.

    Args:
      unbeaten: [n] which of the spots a line joins.
      near: [n] which of them a second panel shows, closer; None without one.
    """
    means = np.array([[spot.x, spot.y] for spot in spots])
    with mpl.rc_context(STYLE):
        height = 3.2 + legend_height(spot.label for spot in spots)
        height += 0 if near is None else 2.8
        figure = Figure((WIDTH, height), layout="constrained")
        panels = figure.subplots(1 if near is None else 2, squeeze=False)[:, 0]
        best = means[unbeaten]
        for axes in panels:
            axes.plot(*best[np.argsort(best[:, 0])].T, color="#808080", linewidth=1, zorder=1)
            for i, spot in enumerate(spots):
                color, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
                if len(spot.xs) > 1:
                    axes.scatter(spot.xs, spot.ys, s=6, color=color, alpha=0.5)
                label = spot.label if axes is panels[0] else None
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
    return figure


def paint_privacy(spots: Mapping[str, Sequence[Spot]], metric: str) -> Figure:
    """The worst domain's metric over ε, algorithm by algorithm."""
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        for i, (name, own) in enumerate(spots.items()):
            color, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            means = np.array([[s.x, s.y] for s in own if s.x < math.inf]).reshape(-1, 2)
            axes.plot(*means.T, color=color, marker=marker, label=name)
            for spot in own:
                if spot.x < math.inf:
                    axes.scatter(spot.xs, spot.ys, s=6, color=color, alpha=0.5)
                else:
                    axes.axhline(spot.y, color=color, linestyle=":", linewidth=1)
        budgets = sorted({spot.x for own in spots.values() for spot in own} - {math.inf})
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("ε")
        axes.set_ylabel(f"{metric} of the worst domain")
        add_legend(figure, _handles(axes))
    return figure


def _handles(axes: Axes) -> dict[str, Any]:
    handles, names = axes.get_legend_handles_labels()
    return dict(zip(names, handles, strict=True))
