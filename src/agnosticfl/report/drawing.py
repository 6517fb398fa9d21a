# SPDX-License-Identifier: Apache-2.0
"""How plots are drawn: every seed, their mean, the band between the extremes; as PNG and SVG."""

import io
import math
import re
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.cells import cell_len

from agnosticfl.report.panels import Line, Panel, Plot, Saved, shortened

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

# Coordinates of paths with more than two decimals: half of a file, and nothing to see.
_PATH, _LONG = re.compile(rb' d="[^"]*"'), re.compile(rb"(\.\d\d)\d+")


def save(plot: Plot, folder: Path) -> Saved:
    """As PNG, on white, and as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = plot.figure
    with _any_letters():
        figure.savefig(folder / f"{plot.name}.png", dpi=150, facecolor="white")
    figure.set_layout_engine(None)  # everything has its place, in the SVG too
    width, height = map(float, figure.get_size_inches())
    saved = Saved(plot.name, plot.caption, (width, height), _svg(figure))
    (folder / f"{plot.name}.svg").write_bytes(saved.svg)
    return saved


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with _any_letters(), mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
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


def paint(panels: Sequence[Panel], x: str) -> Figure:
    """A figure of panels with one legend.

    Args:
      x: what is on the axis that they share.
    """
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
    return figure


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
