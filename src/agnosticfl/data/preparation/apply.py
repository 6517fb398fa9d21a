# SPDX-License-Identifier: Apache-2.0
"""Rows of a table as features, the same way for rows that are stored and for new ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import (
    Place,
    categories_of,
    floats_of,
    numbers_of,
    refuse_first,
)
from agnosticfl.data.formats.limits import short
from agnosticfl.data.formats.tables import Table, batches_of, check_column
from agnosticfl.data.preparation.record import (
    ABSENT,
    Array,
    Category,
    Label,
    Number,
    Preparation,
)
from agnosticfl.errors import check

SHOWN = 5  # unknown categories of a column that are named
COMPARE = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}


class Notes(NamedTuple):
    """What these rows have that no training row had."""

    unknown: Counter[tuple[str, str]]  # (column, category) -> rows; their one-hot part is all 0
    filled: Counter[str]  # column -> rows that miss a number; the training mean stands for it

    def lines(self) -> list[str]:
        """A sentence for each; of very many unknown categories of a column, for some."""
        by_column: dict[str, list[str]] = {}
        for (name, value), n in sorted(self.unknown.items()):
            line = f"column {name!r}: {_rows(n)} the unknown category {value!r}"
            by_column.setdefault(name, []).append(line)
        return [
            *(line for some in by_column.values() for line in some[:SHOWN]),
            *(
                f"column {name!r}: and {len(some) - SHOWN} more unknown categories"
                for name, some in by_column.items()
                if len(some) > SHOWN
            ),
            *(
                f"column {name!r}: {_rows(n)} no value, but no training row lacked one;"
                " the training mean stands for it"
                for name, n in sorted(self.filled.items())
            ),
        ]


class Prepared(NamedTuple):
    """Some rows of a new table."""

    place: Place  # the number of the first of them, and the file
    batch: Any  # the rows as they were, with the columns that were asked for
    features: dict[str, np.ndarray]
    notes: Notes


def features_of(
    preparation: Preparation, place: Place, batch: Any
) -> tuple[dict[str, np.ndarray], Notes]:
    """The features of some rows: `x` of the single values, and those of lists."""
    notes = Notes(Counter(), Counter())
    features: dict[str, np.ndarray] = {}
    single: list[np.ndarray] = []
    for column in preparation.columns:
        if isinstance(column, Array):
            features[column.feature] = _array(column, place, batch)
        elif isinstance(column, Number):
            single.append(_numbers(preparation, column, place, batch, notes))
        else:
            single.append(_one_hot(preparation, column, place, batch, notes))
    if single:
        features["x"] = np.concatenate(single, axis=1)
    return features, notes


def label_of(preparation: Preparation, place: Place, batch: Any) -> np.ndarray:
    """The label of some rows: class numbers as int32, a regression target as float32."""
    label = preparation.label
    check(label is not None, f"{place.file}: this data was prepared without a label")
    assert label is not None
    return label_values(label, place, batch)


def label_values(label: Label, place: Place, batch: Any) -> np.ndarray:
    """The same by the label alone."""
    if label.classes is not None and label.threshold is None:
        return _classes(label.name, label.classes, place, batch)
    values, missing = floats_of(place, batch, label.name)
    refuse_first(place, label.name, missing, "has no value, but it is the label")
    if label.threshold is None:
        return values.astype(np.float32)
    sign, limit = label.compared()
    return COMPARE[sign](values, limit).astype(np.int32)


def prepared_rows(
    preparation: Preparation, table: Table, also: Sequence[str] = ()
) -> Iterator[Prepared]:
    """New rows, prepared as the training rows were.

    Every column that the preparation needs must be there; others are not looked at, except those
    named in `also`, which `Prepared.batch` has too (the label's, to score).
    """
    needed = [column.name for column in preparation.columns]
    for name in (*needed, *also):
        check_column(table, name)
    for place, batch in batches_of(table, list(dict.fromkeys([*needed, *also]))):
        yield Prepared(place, batch, *features_of(preparation, place, batch))


def joined(some: Iterable[Notes]) -> Notes:
    """The notes of all batches together."""
    total = Notes(Counter(), Counter())
    for notes in some:
        total.unknown.update(notes.unknown)
        total.filled.update(notes.filled)
    return total


def check_missing(rule: str, name: str, place: Place, missing: np.ndarray) -> None:
    """Refuses the first missing value, if that is the rule."""
    if rule == "refuse":
        problem = "has no value; with missing = impute it would be filled"
        refuse_first(place, name, missing, problem)


def _array(column: Array, place: Place, batch: Any) -> np.ndarray:
    values = numbers_of(place, batch, column.name)
    wanted = f"{column.dtype} {list(column.shape)}"
    check(
        values.shape[1:] == column.shape,
        f"{place.file}: column {column.name!r} has {list(values.shape[1:])} numbers a row;"
        f" the training rows had {wanted}",
    )
    same = values.astype(column.dtype)
    unlike = (same != values).reshape(len(values), -1).any(axis=1)
    refuse_first(place, column.name, unlike, f"does not fit the training rows' {wanted}")
    return same


def _numbers(
    preparation: Preparation, column: Number, place: Place, batch: Any, notes: Notes
) -> np.ndarray:
    values, missing = floats_of(place, batch, column.name)
    check_missing(preparation.missing, column.name, place, missing)
    if missing.any() and not column.indicator:
        notes.filled[column.name] += int(missing.sum())
    filled = np.where(missing, column.fill, values)
    with np.errstate(over="ignore"):  # found in the next line
        scaled = ((filled - column.mean) / column.deviation).astype(np.float32)
    refuse_first(place, column.name, ~np.isfinite(scaled), "is too large to be scaled")
    columns = [scaled, missing] if column.indicator else [scaled]
    return np.stack(columns, axis=1).astype(np.float32)


def _one_hot(
    preparation: Preparation, column: Category, place: Place, batch: Any, notes: Notes
) -> np.ndarray:
    text = categories_of(place, batch, column.name)
    missing = text.is_null().to_numpy(zero_copy_only=False)
    check_missing(preparation.missing, column.name, place, missing)
    text = pc.fill_null(text, ABSENT)
    number = pc.fill_null(pc.index_in(text, pa.array(column.categories)), -1).to_numpy()
    unknown = pc.value_counts(text.filter(pa.array(number < 0))).to_pylist()
    for entry in unknown:
        notes.unknown[column.name, entry["values"]] += entry["counts"]
    return (number[:, None] == np.arange(len(column.categories))).astype(np.float32)


def _classes(name: str, classes: Sequence[str], place: Place, batch: Any) -> np.ndarray:
    text = categories_of(place, batch, name)
    missing = text.is_null().to_numpy(zero_copy_only=False)
    refuse_first(place, name, missing, "has no value, but it is the label")
    number = pc.fill_null(pc.index_in(text, pa.array(classes)), -1).to_numpy()
    if (number < 0).any():
        row = int((number < 0).argmax())
        allowed = short(", ".join(classes), 200)
        place.refuse(name, row, f"has {short(text[row].as_py())}, no class (allowed: {allowed})")
    return number.astype(np.int32)


def _rows(number: int) -> str:
    return "1 row has" if number == 1 else f"{number} rows have"
