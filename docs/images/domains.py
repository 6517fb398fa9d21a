# SPDX-License-Identifier: Apache-2.0
"""Draws domains.png, the two kinds of domain: python docs/images/domains.py."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

COLOURS = ("#0072b2", "#e69f00")  # told apart by colour-blind readers too
MARKS = ("o", "s")

# The domain of each example of five clients.
CLIENT_PARTITION = ("0000", "000000", "11", "00000", "111")
DATA_PARTITION = ("0010", "000111", "11", "01000", "110")


def draw(axes: Axes, clients: tuple[str, ...], title: str, names: tuple[str, str]) -> None:
    """Draws one box per client, one mark per example."""
    for row, examples in enumerate(clients):
        box = FancyBboxPatch(
            (-0.6, -row - 0.35), 6.2, 0.7, "round,pad=0.04", fc="#f4f4f4", ec="#999"
        )
        axes.add_patch(box)
        axes.text(-0.9, -row, f"client {row + 1}", ha="right", va="center")
        for place, domain in enumerate(map(int, examples)):
            axes.plot(place, -row, MARKS[domain], color=COLOURS[domain], markersize=11)
    marks = [
        Line2D([], [], marker=mark, color=colour, linestyle="", markersize=10)
        for mark, colour in zip(MARKS, COLOURS, strict=True)
    ]
    axes.legend(
        marks, names, loc="upper center", bbox_to_anchor=(0.5, 0.03), ncols=2, frameon=False
    )
    axes.set(title=title, xlim=(-2.6, 5.9), ylim=(-5.1, 0.6), aspect="equal")
    axes.axis("off")


def main() -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, CLIENT_PARTITION, "Client partition: the domain is the client's", ("es-US", "es-AR"))
    draw(
        right, DATA_PARTITION, "Data partition: the domain is the example's", ("question", "answer")
    )
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
