# SPDX-License-Identifier: Apache-2.0
"""Draws way.svg, the data's way, and round.svg, a round: `python docs/images/ways.py`.

Written as SVG by hand, so that text stays text: a search finds it and a screen reader reads it.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

INK, PAPER, BOX, EDGE, MARK = "#1c2b2d", "#fbfbf8", "#e8f1f0", "#7aa5a1", "#0f766e"


class Box(NamedTuple):
    """A box with its title and the lines below it; x, y is its upper left corner."""

    x: int
    y: int
    width: int
    title: str
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        return 34 + 18 * len(self.lines)

    def svg(self) -> str:
        text = [
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" '
            f'fill="{BOX}" stroke="{EDGE}"/>',
            _text(self.x + self.width / 2, self.y + 22, self.title, bold=True),
        ]
        text += [
            _text(self.x + self.width / 2, self.y + 42 + 18 * i, line)
            for i, line in enumerate(self.lines)
        ]
        return "\n".join(text)


class Arrow(NamedTuple):
    """From one point to another, with words above its middle (or beside it, if it is upright)."""

    x0: int
    y0: int
    x1: int
    y1: int
    words: tuple[str, ...] = ()

    def svg(self) -> str:
        line = (
            f'<line x1="{self.x0}" y1="{self.y0}" x2="{self.x1}" y2="{self.y1}" stroke="{MARK}" '
            'stroke-width="2" marker-end="url(#head)"/>'
        )
        x, y = (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2
        above = [
            _text(x, y - 8 - 18 * (len(self.words) - 1 - i), words)
            for i, words in enumerate(self.words)
        ]
        return "\n".join([line, *above])


def _text(x: float, y: float, words: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{weight}>{escape(words)}</text>'


def picture(width: int, height: int, title: str, parts: list[Box | Arrow]) -> str:
    """The whole file; `title` is what a screen reader says."""
    inside = "\n".join(part.svg() for part in parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">
<title>{escape(title)}</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0 8 4 0 8z" fill="{MARK}"/></marker></defs>
<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>
<g font-family="system-ui, sans-serif" font-size="14" fill="{INK}">
{inside}
</g>
</svg>
"""  # noqa: E501


def way() -> str:
    """From anyone's files to a model in use."""
    rows = [
        (
            ("files", "table, images,", "posts, dumps"),
            ("store", "examples with", "client and domain"),
            ("cohort", "the clients", "of round t"),
            ("sum", "of what they", "contribute"),
        ),
        (
            ("model in use", "export,", "predict"),
            ("report", "tables, curves,", "intervals"),
            ("records", "loss of each", "domain"),
            ("state", "model w,", "weights λ"),
        ),
    ]
    words = (
        ("data prepare", "sampling", "engine, channel"),
        ("export", "report", "evaluation"),
    )
    parts: list[Box | Arrow] = []
    for row, boxes in enumerate(rows):
        y = 30 + 150 * row
        for place, (title, *lines) in enumerate(boxes):
            parts.append(Box(20 + 268 * place, y, 146, title, tuple(lines)))
        for place, word in enumerate(words[row]):
            left, right = 168 + 268 * place, 286 + 268 * place
            ends = (left, right) if row == 0 else (right, left)
            parts.append(Arrow(ends[0], y + 40, ends[1], y + 40, (word,)))
    parts.append(Arrow(897, 102, 897, 178))
    parts.append(Arrow(846, 178, 650, 104))
    return picture(990, 280, "The data's way: from files to a model in use", parts)


def one_round() -> str:
    """What goes down to clients and what comes up, in a round of Algorithm 1."""
    parts: list[Box | Arrow] = [
        Box(
            20, 95, 230, "server, round t",
            (
                "w: the model", "λ: weight of each domain",
                "α = λ / number of examples,", "by a window of rounds",
            ),
        ),
        Box(
            450, 20, 190, "client k",
            ("local steps on a loss", "weighted by α", "gives Δ, β, L, N"),
        ),
        Box(450, 135, 190, "client k + 1", ("the same",)),
        Box(450, 215, 190, "client k + 2", ("the same",)),
        Box(
            720, 75, 190, "sums only",
            ("Σ βΔ,  Σ β:", "the next w", "Σ L,  Σ N per domain:", "the next λ"),
        ),
        Arrow(252, 120, 446, 62, ("w, α",)),
        Arrow(252, 150, 446, 158),
        Arrow(252, 180, 446, 238),
        Arrow(642, 62, 716, 105),
        Arrow(642, 158, 716, 140),
        Arrow(642, 238, 716, 172),
    ]  # fmt: skip
    back = (
        f'<path d="M815 186 V 300 H 135 V 208" fill="none" stroke="{MARK}" stroke-width="2" '
        'marker-end="url(#head)"/>'
    )
    drawn = picture(930, 330, "A round: the server sends w and α, and gets sums", parts)
    return drawn.replace("</g>", f"{back}\n{_text(475, 318, 'λ moves towards the domains that are served worst')}\n</g>")  # fmt: skip  # noqa: E501


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "way.svg").write_text(way())
    (folder / "round.svg").write_text(one_round())
