# SPDX-License-Identifier: Apache-2.0
"""Lines over rounds as an SVG that takes its colours from the page around it."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 24  # room around the lines
COLOURS = 8  # of more lines, one stands out
STANDS_OUT, PALE = "c0", "pale"


def colours(ends: Sequence[float | None]) -> list[str]:
    """The class of each line; of very many, the one that ends highest is told from the others."""
    if len(ends) <= COLOURS:
        return [f"c{number}" for number in range(len(ends))]
    highest = max(range(len(ends)), key=lambda i: -math.inf if (e := ends[i]) is None else e)
    return [STANDS_OUT if number == highest else PALE for number in range(len(ends))]


def chart(
    rounds: Sequence[int],
    lines: Sequence[Sequence[float | None]],
    classes: Sequence[str],
    title: str,
) -> str:
    """Lines, each with a value or None for every round."""
    values = [value for line in lines for value in line if value is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(abs(high), 1.0):
        low, high = low - 0.5, high + 0.5
    first, last = rounds[0], rounds[-1]

    def x(t: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (t - first) / max(last - first, 1)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(_grid(value, y(value), high - low) for value in (low, (low + high) / 2, high)),
        f'<text x="{LEFT}" y="{HEIGHT - 6}">round {first}</text>',
    ]
    if last > first:
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" class="end">{last}</text>')
    # What stands out is drawn last.
    for line, name in sorted(zip(lines, classes, strict=True), key=lambda each: each[1] != PALE):
        known = zip(rounds, line, strict=True)
        points = [(x(t), y(value)) for t, value in known if value is not None]
        place = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="{name}" points="{place}"/>')
        parts += [
            f'<circle class="{name}" cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in points[-1:]
        ]
    return "\n".join([*parts, "</svg>"])


def _grid(value: float, height: float, span: float) -> str:
    """With as many digits as tell the lines apart."""
    digits = max(3, math.ceil(math.log10(max(abs(value), span) / span)) + 2)
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
        f'<text x="{LEFT - 5}" y="{height + 4:.1f}" class="end">{value:.{digits}g}</text>'
    )
