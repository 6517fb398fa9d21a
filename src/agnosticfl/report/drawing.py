# SPDX-License-Identifier: Apache-2.0
"""How plots are drawn: every seed, their mean, the band between the extremes; as PNG and SVG."""

import io
import math
import re
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.cells import cell_len

from agnosticfl.report.means import known_mean

# Fonts with Chinese, Japanese and Korean letters, of which the first that is installed is used.
EASTERN = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Source Han Sans",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "PingFang SC",
    "WenQuanYi Zen Hei",
)
_INSTALLED = set(font_manager.get_font_names())

STYLE: Any = {
    "font.family": ["DejaVu Sans", *[f for f in EASTERN if f in _INSTALLED][:1], "sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",  # text stays text: a browser has letters that fonts here may lack
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
WIDTH = 4.8  # inches: text of 10 points can still be read when a phone shows the whole width
POINTS = 100  # on a curve; of more rounds, neighbours are averaged
SETTLED = 0.1  # the part of a training that is left out when the range of an axis is chosen
LABEL = 32  # letters of a name in a legend; of a longer one, the rest is cut

# Coordinates of paths with more than two decimals: half of a file, and nothing to see.
_PATH, _LONG = re.compile(rb' d="[^"]*"'), re.compile(rb"(\.\d\d)\d+")


class Plot(NamedTuple):
    name: str  # of its file
    caption: str
    figure: Figure


class Saved(NamedTuple):
    """A plot whose files are written, and its SVG once more, since to draw takes time."""

    plot: Plot
    svg: bytes


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


def save(plot: Plot, folder: Path) -> Saved:
    """As PNG, on white, and as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    with _any_letters():
        plot.figure.savefig(folder / f"{plot.name}.png", dpi=150, facecolor="white")
    plot.figure.set_layout_engine(None)  # everything has its place, in the SVG too
    saved = Saved(plot, _svg(plot))
    (folder / f"{plot.name}.svg").write_bytes(saved.svg)
    return saved


def _svg(plot: Plot) -> bytes:
    buffer = io.BytesIO()
    with _any_letters(), mpl.rc_context(STYLE):
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _PATH.sub(lambda path: _LONG.sub(rb"\1", path[0]), buffer.getvalue())


@contextmanager
def _any_letters() -> Generator[None]:
    """No word about letters that no font here has: an SVG needs none, a PNG shows a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def add_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Above the axes; long names one below the other."""
    names = [shortened(name) for name in handles]
    figure.legend(handles.values(), names, loc="outside upper left", ncols=_legend_columns(handles))


def legend_height(labels: Iterable[str]) -> float:
    """Inches."""
    names = list(labels)
    return 0.2 * math.ceil(len(names) / _legend_columns(names))


def _legend_columns(labels: Iterable[str]) -> int:
    """Two if the names are short. A browser's letters may be wider than the ones reckoned with."""
    return 2 if all(cell_len(label) <= 22 and label.isascii() for label in labels) else 1


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


def draw(name: str, caption: str, panels: Sequence[Panel], x: str = "round") -> Plot:
    """A figure of panels with one legend."""
    labels = dict.fromkeys(
        part.label for panel in panels for part in (*panel.lines, panel.band) if part is not None
    )
    each = 2.8 if len(panels) == 1 else 2.1
    with mpl.rc_context(STYLE):
        height = 0.4 + each * len(panels) + legend_height(labels)
        figure = Figure((WIDTH, height), layout="constrained")
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw(axes, panel)
        all_axes[-1].set_xlabel(x)
        handles = {
            text: handle
            for axes in all_axes
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        add_legend(figure, handles)
    return Plot(name, caption, figure)


def _draw(axes: Axes, panel: Panel) -> None:
    if panel.band is not None:
        label, x, low, high = panel.band
        axes.fill_between(x, low, high, color="#808080", alpha=0.25, linewidth=0, label=label)
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
