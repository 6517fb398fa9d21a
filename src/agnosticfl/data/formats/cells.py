# SPDX-License-Identifier: Apache-2.0
"""Columns of an Arrow batch as text or numbers; what does not fit is refused by column and row."""

from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.limits import short
from agnosticfl.errors import BadInput, check

# JAX computes with these unless told otherwise.
NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "bool": "uint8"}
STRING = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
TEXT = (*STRING, pa.types.is_integer, pa.types.is_boolean)
NUMBER = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
# How people write that a value is missing, in any mix of upper and lower case.
MISSING = ("", "?", "na", "n/a", "nan", "null")
NO_NAME = ("", "?")  # of these, what cannot be the name of a client or a domain: NA is Namibia
NUMERAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity)$"
TRUTH = {"false": "0", "true": "1"}


class Place(NamedTuple):
    """Where a batch comes from, for messages."""

    file: str
    row: int  # number of its first row

    def refuse(self, column: str, row: int, problem: str) -> NoReturn:
        raise BadInput(f"{self.file}, row {self.row + row}: column {column!r} {problem}")


def text_of(place: Place, batch: Any, name: str) -> Any:
    """A column of texts, integers or categories as text; every row must have one."""
    kind = _value_type(batch[name])
    check(
        any(test(kind) for test in TEXT),
        f"{place.file}: column {name!r} is of type {kind}; texts or integers are needed",
    )
    text = _plain(batch[name])
    refuse_first(place, name, _mask(pc.fill_null(_is_in(text, NO_NAME), True)), "has no value")
    return text


def categories_of(place: Place, batch: Any, name: str) -> Any:
    """A column of single values as text, null where one is missing.

    A value has one text, however it is written: 3, 3.0 and the float 3 are "3", True is "true".
    """
    kind = _value_type(batch[name])
    check(
        any(test(kind) for test in (*TEXT, *NUMBER, pa.types.is_null)),
        f"{place.file}: column {name!r} is of type {kind};"
        " numbers, texts, truth values or lists of numbers are needed",
    )
    text = _known(_plain(batch[name]))
    lower = pc.utf8_lower(text)
    text = pc.if_else(_is_in(lower, tuple(TRUTH)), lower, text)
    return pc.replace_substring_regex(text, r"^(-?[0-9]+)\.0+$", r"\1")


def floats_of(place: Place, batch: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of single numbers as [n] float64, and where one is missing (it is NaN there)."""
    column = batch[name]
    if not is_text(column):
        values = column.cast(pa.float64())
    else:
        text = categories_of(place, batch, name)
        wrong = no_numbers(column)
        if wrong.any():
            row = int(wrong.argmax())
            place.refuse(name, row, f"has {short(text[row].as_py())}, which is no number")
        values = _as_floats(text)
    filled = pc.fill_null(values, float("nan")).to_numpy(zero_copy_only=False)
    missing = np.isnan(filled)
    with np.errstate(over="ignore"):  # found in the next lines
        endless = ~missing & ~np.isfinite(filled.astype(np.float32))
    if endless.any():
        row = int(endless.argmax())
        place.refuse(name, row, f"has {filled[row]}, which is no finite float32")
    return filled, missing


def no_numbers(column: Any) -> np.ndarray:
    """Where a column of texts has something that is neither a number nor a missing value, [n]."""
    text = _known(_plain(column))
    try:
        text.cast(pa.float64())
    except pa.ArrowInvalid:
        number = pc.or_(
            pc.match_substring_regex(text, NUMERAL), _is_in(pc.utf8_lower(text), tuple(TRUTH))
        )
        return ~_mask(pc.fill_null(number, True))
    return np.zeros(len(text), bool)


def is_text(column: Any) -> bool:
    """Whether a column holds texts, which may be written numbers."""
    return any(test(column.type) for test in STRING)


def is_truth(column: Any) -> bool:
    """Whether a column holds truth values, by its type or as words."""
    if pa.types.is_boolean(column.type):
        return True
    if not is_text(column):
        return False
    text = pc.utf8_lower(_known(_plain(column)))
    return text.null_count < len(text) and bool(pc.all(_is_in(text, tuple(TRUTH))).as_py())


def refuse_first(place: Place, name: str, wrong: np.ndarray, problem: str) -> None:
    """Refuses the first row that is wrong, if there is one."""
    if wrong.any():
        place.refuse(name, int(wrong.argmax()), problem)


def numbers_of(place: Place, batch: Any, name: str) -> np.ndarray:
    """A column of numbers, or of lists of numbers that are all of one length, as [n, ...]."""
    column, shape = batch[name], [len(batch)]
    while pa.types.is_nested(column.type):
        width = _widths(place, name, column)
        wrong = np.flatnonzero((width != width[0]) | (width < 1))
        if len(wrong):
            row = wrong[0] * len(batch) // len(width)
            place.refuse(name, row, f"has a list of {width[wrong[0]]} values, not {width[0]}")
        shape.append(int(width[0]))
        column = column.flatten()
    values, bad = _narrow(place, name, column)
    if bad.any():
        cell = int(bad.argmax())
        row = cell * len(batch) // len(values)
        place.refuse(name, row, f"has {column[cell]}, which is no finite {values.dtype}")
    return values.reshape(shape)


def _value_type(column: Any) -> Any:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _plain(column: Any) -> Any:
    """Single values as texts without blanks around them; null where there is none."""
    kind = _value_type(column)
    plain = column.cast(kind)
    if pa.types.is_floating(kind):
        plain = plain.cast(pa.float32()) if pa.types.is_float16(kind) else plain  # has no is_nan
        plain = pc.if_else(pc.is_nan(plain), None, plain)
    return pc.utf8_trim_whitespace(plain.cast(pa.string()))


def _known(text: Any) -> Any:
    """The texts, null where they say that a value is missing."""
    return pc.if_else(_is_in(pc.utf8_lower(text), MISSING), pa.scalar(None, pa.string()), text)


def _is_in(text: Any, values: tuple[str, ...]) -> Any:
    """Which texts are one of `values`; null where a text is null."""
    found = pc.is_in(text, pa.array(values, pa.string()))
    return pc.if_else(text.is_null(), pa.scalar(None, pa.bool_()), found)


def _as_floats(text: Any) -> Any:
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:  # there are words for truth among them
        for word, number in TRUTH.items():
            text = pc.if_else(pc.equal(text, word), number, text)
        return text.cast(pa.float64())


def _mask(values: Any) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def _widths(place: Place, name: str, column: Any) -> np.ndarray:
    """Values in each list of a column; 0 where a list is missing."""
    check(
        not pa.types.is_struct(column.type) and not pa.types.is_union(column.type),
        f"{place.file}: column {name!r} is of type {column.type}; numbers or lists are needed",
    )
    width = pc.if_else(column.is_valid(), pc.list_value_length(column), 0)
    return width.to_numpy(zero_copy_only=False)


def _narrow(place: Place, name: str, column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of at most 32 bits, and where that is impossible."""
    kind = column.type
    check(
        any(
            test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        ),
        f"{place.file}: column {name!r} is of type {kind}; numbers or lists of them are needed",
    )
    dtype = np.dtype(kind.to_pandas_dtype()).name
    wide = pc.fill_null(column, False if dtype == "bool" else 0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):  # found in the next lines
        values = wide.astype(NARROW.get(dtype, dtype))
    bad = column.is_null().to_numpy(zero_copy_only=False) | ~np.isfinite(values)
    return values, bad if values.dtype.kind == "f" else bad | (values != wide)
