# SPDX-License-Identifier: Apache-2.0
"""Columns of an Arrow batch as text or numbers; what does not fit is refused by column and row."""

from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.errors import BadInput, check

# JAX computes with these unless told otherwise.
NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "bool": "uint8"}
TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_boolean,
)


class Place(NamedTuple):
    """Where a batch comes from, for messages."""

    file: str
    row: int  # number of its first row

    def refuse(self, column: str, row: int, problem: str) -> NoReturn:
        raise BadInput(f"{self.file}, row {self.row + row}: column {column!r} {problem}")


def text_of(place: Place, batch: Any, name: str) -> Any:
    """A column of texts, integers or categories as text; every row must have one."""
    column = batch[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    check(
        any(test(kind) for test in TEXT),
        f"{place.file}: column {name!r} is of type {kind}; texts or integers are needed",
    )
    text = column.cast(kind).cast(pa.string())
    empty = pc.fill_null(pc.equal(text, ""), True).to_numpy(zero_copy_only=False)
    if empty.any():
        place.refuse(name, int(empty.argmax()), "has no value")
    return text


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
