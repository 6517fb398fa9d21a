# SPDX-License-Identifier: Apache-2.0
"""What plots show, as data: lines over rounds, in panels one below the other; spots.

Nothing here needs Matplotlib, which takes half a second to load: other processes draw.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agnosticfl.report.means import known_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 100  # on a curve; of more rounds, neighbours are averaged
SETTLED = 0.1  # the part of a training that is left out when the range of an axis is chosen
LABEL = 32  # letters of a name in a legend; of a longer one, the rest is cut


class Line(NamedTuple):
    """One quantity in the course of the training."""

    label: str
    number: int  # chooses colour and dashes, so that an algorithm keeps its own from plot to plot
    x: list[np.ndarray]  # one per seed
    y: list[np.ndarray]


class Band(NamedTuple):
    """What lies between the lowest and the highest of many lines."""

    label: str
    x: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Panel(NamedTuple):
    """The lines in one pair of axes; figures have them one below the other."""

    title: str
    quantity: str
    lines: list[Line]
    limits: tuple[float, float] | None = None  # of y
    level: float | None = None  # a horizontal line
    log: bool = False
    band: Band | None = None


class Spot(NamedTuple):
    """One algorithm between two quantities."""

    label: str
    x: float  # the mean over its seeds,
    y: float
    xs: list[float]  # and each of them
    ys: list[float]


class Plot(NamedTuple):
    """A plot that any process can draw."""

    name: str  # of its file
    caption: str
    make: "Callable[[], Figure]"

    @property
    def figure(self) -> "Figure":
        """It, drawn: that takes time."""
        return self.make()


class Saved(NamedTuple):
    """A plot whose files are written, and its SVG once more."""

    name: str
    caption: str
    size: tuple[float, float]  # inches
    svg: bytes


def draw(name: str, caption: str, panels: Sequence[Panel], x: str = "round") -> Plot:
    """A plot of panels with one legend.

    Args:
      x: what is on the axis that they share.
    """
    return Plot(name, caption, painting("agnosticfl.report.drawing", "paint", panels, x))


def painting(module: str, function: str, *data: Any) -> "Callable[[], Figure]":
    """What calls a function that draws `data`; its module is loaded then."""
    return functools.partial(_call, module, function, *data)


def _call(module: str, function: str, *data: Any) -> "Figure":
    return getattr(importlib.import_module(module), function)(*data)


def shortened(name: str, letters: int = LABEL) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def thin(curve: np.ndarray) -> np.ndarray:
    """[n] or [n, p] -> at most `POINTS` points, each the mean of its neighbourhood."""
    parts = np.array_split(curve, min(len(curve), POINTS))
    return np.stack([known_mean(part) for part in parts])


def settled(lines: Sequence[Line]) -> tuple[float, float] | None:
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
