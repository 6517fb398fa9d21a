# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal: as many below each other as its width asks for."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from agnosticfl.report.grid import Entry, Grid

BORDER = 3  # what a column takes beside its text: a line and a blank on each side
LONGEST = 24  # a name that is longer is broken


def terminal(grid: Grid, width: int) -> Group:
    """The table in pieces of at most `width` columns, each with the names of the rows."""
    first, *others = _widths(grid, width)
    room = width - first - BORDER - 1
    pieces = [
        _piece(grid, [0, *(place + 1 for place in part)], [first, *(others[i] for i in part)])
        for part in _parts(others, room)
    ]
    notes = [Text(note, style="dim") for note in grid.notes]
    return Group(Text(grid.caption, style="italic"), *pieces, *notes)


def _parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """The numbers of the columns of each piece, one at least."""
    part: list[int] = []
    for place, width in enumerate(widths):
        if part and sum(widths[i] + BORDER for i in part) + width + BORDER > room:
            yield part
            part = []
        part.append(place)
    yield part


def _widths(grid: Grid, width: int) -> list[int]:
    """Of each column: numbers are never broken; names are if the table would be too wide."""
    numbers = [
        max(cell_len(line) for row in (*grid.rows, *grid.foot) for line in _lines(row[place]))
        for place in range(len(grid.header))
    ]
    whole = [cell_len(entry.text) for entry in grid.header]
    if sum(map(max, numbers, whole)) + BORDER * len(whole) < width:
        return list(map(max, numbers, whole))
    words = [max(map(cell_len, (*entry.text.split(), ""))) for entry in grid.header]
    first, *others = [
        max(own, min(word, LONGEST)) for own, word in zip(numbers, words, strict=True)
    ]
    return [min(first, LONGEST), *others]


def _piece(grid: Grid, places: Sequence[int], widths: Sequence[int]) -> Table:
    table = Table()
    for place, width in zip(places, widths, strict=True):
        table.add_column(
            _text(grid.header[place]),
            justify="right" if place else "left",
            min_width=width,
            max_width=width,
            overflow="fold",
        )
    for part in (grid.rows, grid.foot):
        for row in part:
            table.add_row(*(_text(row[place]) for place in places))
        table.add_section()
    return table


def _lines(entry: Entry) -> list[str]:
    return [entry.text, entry.interval] if entry.interval else [entry.text]


def _text(entry: Entry) -> Text:
    text = Text(entry.text, style="bold" if entry.bold else "")
    return text.append(f"\n{entry.interval}", style="not bold dim") if entry.interval else text
