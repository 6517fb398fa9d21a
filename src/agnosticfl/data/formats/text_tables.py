# SPDX-License-Identifier: Apache-2.0
"""Tables written as text: one line per row, fields with a delimiter, with or without a header."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from agnosticfl.data.formats.cells import MISSING, NUMERAL
from agnosticfl.data.formats.limits import short
from agnosticfl.errors import check

ENDINGS = (".csv", ".tsv", ".data", ".txt")
GUESSED = (";", "\t")  # tried where the first line does not have the delimiter of the ending
WORDS = {"tab": "\t", "\\t": "\t"}  # a tab is hard to type
HEAD = 1 << 20  # bytes that are looked at beforehand


class TextTable(NamedTuple):
    """The names of the columns, and batches of them; every value is text."""

    columns: tuple[str, ...]
    batches: Callable[[Sequence[str]], Iterator[Any]]


def open_text(path: Path, names: Sequence[str] | None, delimiter: str | None) -> TextTable:
    """Opens a file of text; without `names`, its first row has the names of the columns."""
    head = _head(path)
    delimiter = _delimiter(path, head, delimiter)
    rows = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
    first, second = ([field.strip() for field in next(rows, [])] for _ in range(2))
    if names is not None:
        _check_names(f"{path} (delimiter {delimiter!r})", list(names), first, second)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # Without threads the parser knows the number of a bad row.
    reading = pyarrow.csv.ReadOptions(use_threads=False, column_names=names)
    with pyarrow.csv.open_csv(_unpacked(path), reading, parsing) as reader:
        raw = reader.schema.names
    columns = [name.strip() for name in raw]

    def batches(wanted: Sequence[str]) -> Iterator[Any]:
        chosen = [raw[columns.index(name)] for name in wanted]
        # All as text: a type guessed from the first block may fail in the second.
        types = pyarrow.csv.ConvertOptions(
            include_columns=chosen, column_types=dict.fromkeys(chosen, pa.string())
        )
        with pyarrow.csv.open_csv(_unpacked(path), reading, parsing, types) as reader:
            for batch in reader:
                yield batch.rename_columns(list(wanted))

    return TextTable(tuple(columns), batches)


def without_header(columns: Sequence[str]) -> bool:
    """Whether these names of columns look like a row of values: at least half are numbers."""
    return 0 < len(columns) <= 2 * sum(map(_is_value, columns))


def _head(path: Path) -> str:
    with _unpacked(path) as stream:
        return stream.read(HEAD).decode("utf-8-sig", errors="replace")


def _unpacked(path: Path) -> Any:
    packed = path.name.lower().endswith(".gz")
    return pa.input_stream(str(path), compression="gzip" if packed else None)


def _delimiter(path: Path, head: str, asked: str | None) -> str:
    if asked is not None:
        delimiter = WORDS.get(asked, asked)
        check(
            len(delimiter) == 1 and delimiter.isascii() and delimiter not in '"\r\n',
            f"delimiter is {asked!r}; it must be one character, such as ; or tab",
        )
        return delimiter
    usual = "\t" if ".tsv" in path.name.lower() else ","
    line = head.partition("\n")[0]
    return next((mark for mark in (usual, *GUESSED) if mark in line), usual)


def _check_names(place: str, names: list[str], first: list[str], second: list[str]) -> None:
    check(
        not first or len(names) == len(first),
        f"{place}: {len(names)} names are given, but the first row has {len(first)} fields",
    )
    is_header = first == names or (
        not any(map(_is_value, first)) and any(map(_is_value, filter(None, second)))
    )
    check(
        not (first and is_header),
        f"{place}: the first row looks like names of columns ({short(', '.join(first))});"
        " leave names out, they are for files without a header",
    )


def _is_value(field: str) -> bool:
    return field.lower() in MISSING or re.search(NUMERAL, field) is not None
