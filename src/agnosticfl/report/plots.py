# SPDX-License-Identifier: Apache-2.0
"""Curves over rounds: what the model learned, and how λ moved."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agnosticfl.evaluate import worst_domain
from agnosticfl.report.runs import Comparison, Row, Run

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "font.size": 10,
    "legend.frameon": False,
    "svg.hashsalt": "agnosticfl",  # the same data gives the same file
    "axes.prop_cycle": cycler(  # Okabe and Ito's colours, told apart by most colour-blind readers
        color=["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"]
    ),
}


class Plot(NamedTuple):
    name: str  # of its file
    caption: str
    figure: Figure


def plots(comparison: Comparison) -> Iterator[Plot]:
    """The plots that these runs allow."""
    if "params" in comparison.rows[0].runs[0].summary:
        yield _plot("value", "Learned value over training rounds", _draw_values, comparison)
    yield _plot("weights", "Domain weights λ over training rounds", _draw_weights, comparison)
    if _heldout(comparison.rows[0].runs[0])[0].size:
        name = comparison.rows[0].runs[0].config.metric
        caption = f"{name} of the worst domain on held-out clients over rounds"
        yield _plot("heldout", caption[0].upper() + caption[1:], _draw_heldout, comparison)
    yield _plot("worst", "Largest training loss of any domain over rounds", _draw_worst, comparison)


def save_png(plot: Plot, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plot.figure.savefig(folder / f"{plot.name}.png", dpi=150)


def svg(plot: Plot) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _plot(
    name: str, caption: str, draw: Callable[[Figure, Comparison], None], comparison: Comparison
) -> Plot:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        draw(figure, comparison)
    return Plot(name, caption, figure)


def _draw_values(figure: Figure, comparison: Comparison) -> None:
    axes = figure.subplots()
    for i, row in enumerate(comparison.rows):
        _band(axes, _all(row), [run.series("params")[:, 0] for run in row.runs], row.title, i)
    _label(axes, "w")


def _draw_weights(figure: Figure, comparison: Comparison) -> None:
    rows = [row for row in comparison.rows if row.runs[0].config.algorithm == "afa"]
    row = (rows or comparison.rows)[0]
    axes = figure.subplots()
    for i, domain in enumerate(comparison.domains):
        _band(axes, _all(row), [run.series("domain_weights")[:, i] for run in row.runs], domain, i)
    axes.set_ylim(0, 1)
    axes.set_title(row.title, loc="left", fontsize=10)
    _label(axes, "λ")


def _draw_worst(figure: Figure, comparison: Comparison) -> None:
    axes = figure.subplots()
    for i, row in enumerate(comparison.rows):
        if row.runs[0].config.target is None:  # target-only training sees one domain alone
            losses = [np.fmax.reduce(run.series("loss"), axis=1) for run in row.runs]
            _band(axes, _all(row), losses, row.title, i)
    axes.set_yscale("log")
    _label(axes, "loss of the worst domain")


def _draw_heldout(figure: Figure, comparison: Comparison) -> None:
    axes = figure.subplots()
    for i, row in enumerate(comparison.rows):
        rounds = _heldout(row.runs[0])[0]
        _band(axes, rounds, [_heldout(run)[1] for run in row.runs], row.title, i)
    _label(axes, comparison.rows[0].runs[0].config.metric)


def _heldout(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The rounds in which held-out clients were looked at, and the worst domain's metric then."""
    looks = [record for record in run.records if "heldout" in record]
    values = [worst_domain(look["heldout"], run.config.metric).value for look in looks]
    return np.array([look["round"] for look in looks]), np.array(values, np.float64)


def _all(row: Row) -> np.ndarray:
    return row.runs[0].series("round")


def _band(
    axes: Axes, rounds: np.ndarray, curves: list[np.ndarray], label: str, number: int
) -> None:
    """The mean over seeds, and the range between the lowest and the highest.

    `number` chooses the colour, so that an algorithm keeps its own from plot to plot.
    """
    stacked = np.array(curves)
    (line,) = axes.plot(rounds, stacked.mean(axis=0), label=label, color=f"C{number % 7}")
    if len(curves) > 1:
        low, high = stacked.min(axis=0), stacked.max(axis=0)
        axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def _label(axes: Axes, quantity: str) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel(quantity)
    axes.legend()
