# SPDX-License-Identifier: Apache-2.0
"""A table of entries, and the forms it is written in: Markdown and LaTeX."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agnosticfl.report.comparison import Cell, Interval

DASH = "–"  # nothing was measured

# What LaTeX would take for a command, or has no letter for.
LATEX = {
    **{c: "\\" + c for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "λ": r"$\lambda$",
    "γ": r"$\gamma$",
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "χ": r"$\chi$",
    "–": "--",
    "×": r"$\times$",
    "²": "$^2$",
    "ε": r"$\varepsilon$",
    "†": r"$\dagger$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


class Entry(NamedTuple):
    """What stands in one place of a table."""

    text: str
    value: float | None = None  # by which a column is sorted; by the text if there is none
    bold: bool = False
    interval: str = ""  # in brackets, below the number where lines can be broken
    hint: str = ""  # what a page says when somebody points at it


class Grid(NamedTuple):
    """A table; the first column names the rows."""

    caption: str
    header: list[Entry]
    rows: list[list[Entry]]
    foot: Sequence[list[Entry]] = ()  # what stands behind the numbers; never sorted
    notes: Sequence[str] = ()  # what must be said below


def grid(
    caption: str,
    names: Iterable[str],
    rows: Iterable[Sequence[Entry]],
    notes: Sequence[str] = (),
) -> Grid:
    """A table whose header is plain."""
    return Grid(caption, [Entry(n) for n in names], [list(row) for row in rows], notes=notes)


def markdown(grid: Grid) -> str:
    """For `table.md`."""
    rule = ["---", *["---:"] * (len(grid.header) - 1)]
    rows = [[_markdown(entry) for entry in row] for row in (grid.header, *grid.rows, *grid.foot)]
    lines = ["| " + " | ".join(cells) + " |" for cells in (rows[0], rule, *rows[1:])]
    notes = "".join(f"\n{note}\n" for note in grid.notes)
    return f"{grid.caption}\n\n" + "\n".join(lines) + "\n" + notes


def latex(grid: Grid) -> str:
    r"""For `table.tex`: needs `\usepackage{booktabs}`."""
    header, rows, foot = (
        [" & ".join(map(_latex, row)) + r" \\" for row in part]
        for part in ([grid.header], grid.rows, grid.foot)
    )
    notes = [rf"\par\smallskip{{\footnotesize {_latex_text(note)}}}" for note in grid.notes]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex_text(grid.caption)}}}",
            r"\centering",
            rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
            r"\toprule",
            *header,
            r"\midrule",
            *rows,
            *([r"\midrule", *foot] if foot else []),
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def places(values: Iterable[float]) -> int:
    """Decimals that give the middle one of these numbers three digits; one at least."""
    known = sorted(abs(v) for v in values if math.isfinite(v) and v)
    size = math.floor(math.log10(known[len(known) // 2])) if known else 0
    return min(max(2 - size, 1), 6)


def number(cell: Cell | None, decimals: int) -> Entry:
    """Mean (standard deviation), and the interval."""
    if cell is None:
        return Entry(DASH)
    spread = "" if cell.std is None else f" ({_deviation(cell.std, decimals)})"
    return Entry(
        plain(cell.mean, decimals) + spread,
        cell.mean,
        interval="" if cell.interval is None else _interval(cell.interval, decimals),
    )


def plain(value: float, decimals: int) -> str:
    """A number with so many decimals; a huge one (a model that diverged) by its power of ten."""
    if math.isnan(value):
        return DASH
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.{decimals}f}" if abs(value) < 1e7 else f"{value:.3g}"


def _deviation(std: float, decimals: int) -> str:
    """As exact as the mean, and never a 0 that is none."""
    return plain(std, decimals) if std >= 10**-decimals else f"{std:.1g}"


def _interval(interval: Interval, decimals: int) -> str:
    return f"[{', '.join(plain(end, decimals) for end in interval)}]"


def in_bytes(size: float) -> str:
    """1234567 as 1.23 MB."""
    unit, name = byte_unit(size)
    return f"{size / unit:.3g} {name}"


def byte_unit(size: float) -> tuple[int, str]:
    """The unit that suits a number of bytes."""
    units = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    return next((unit for unit in units if size >= 0.9995 * unit[0]), (1, "B"))


def _markdown(entry: Entry) -> str:
    text = entry.text.replace("|", r"\|")
    return _beside(f"**{text}**" if entry.bold else text, entry)


def _latex(entry: Entry) -> str:
    text = _latex_text(entry.text)
    return _beside(rf"\textbf{{{text}}}" if entry.bold else text, entry)


def _beside(text: str, entry: Entry) -> str:
    return f"{text} {entry.interval}" if entry.interval else text


def _latex_text(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)
