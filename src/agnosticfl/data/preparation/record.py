# SPDX-License-Identifier: Apache-2.0
"""What was learnt from the training rows of a table, so that other rows can be made the same way.

It is kept as JSON: in a store, and wherever a trained model goes.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.errors import BadInput

ABSENT = "(missing)"  # the category of rows that have none
COMPARED = re.compile(r"(>=|>|<=|<) *([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


class Number(NamedTuple):
    """A column of single numbers: v becomes (v − mean) / deviation in `x`."""

    name: str
    mean: float = 0.0  # 0 and 1 where nothing is scaled
    deviation: float = 1.0
    fill: float = 0.0  # the training mean, for v where it is missing
    indicator: bool = False  # whether a 0/1 column of `x` says that v is missing

    @property
    def parts(self) -> tuple[str, ...]:
        """The columns of `x` that it becomes."""
        return (self.name, f"{self.name} is missing") if self.indicator else (self.name,)


class Category(NamedTuple):
    """A column of categories: each is a 0/1 column of `x`."""

    name: str
    categories: tuple[str, ...]  # of training rows; "(missing)" is one, if a training row has none

    @property
    def parts(self) -> tuple[str, ...]:
        """The columns of `x` that it becomes."""
        return tuple(f"{self.name}={category}" for category in self.categories)


class Array(NamedTuple):
    """A column of lists (an image, token ids), which is not touched: a feature of its own."""

    name: str
    feature: str  # its name in the store
    dtype: str
    shape: tuple[int, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """It is no part of the `x` that is made of single values."""
        return ()


Column: TypeAlias = Number | Category | Array
KINDS: dict[str, type[Column]] = {"number": Number, "category": Category, "array": Array}


class Label(NamedTuple):
    """The column to predict: one of several classes, or a number."""

    name: str
    classes: tuple[str, ...] | None  # in the order of their numbers; None: a regression target
    threshold: str | None = None  # ">0": class 1 where this holds, else class 0

    def compared(self) -> tuple[str, float]:
        """The sign and the number of the threshold."""
        found = COMPARED.fullmatch(self.threshold or "")
        if found is None:
            raise BadInput(f"{self.threshold!r} is no threshold; write it as >0 or <=1.5")
        return found[1], float(found[2])


class Preparation(NamedTuple):
    """How rows of a table become features."""

    columns: tuple[Column, ...]  # in the order of `x`
    label: Label | None = None
    missing: str = "impute"  # or "refuse"

    @property
    def x_columns(self) -> tuple[str, ...]:
        """The name of each column of the `x` that is made of single values."""
        return tuple(part for column in self.columns for part in column.parts)


def to_json(preparation: Preparation) -> dict[str, Any]:
    """As plain lists and tables."""
    names = {kind: name for name, kind in KINDS.items()}
    label = preparation.label
    return {
        "columns": [{"kind": names[type(c)], **_with_lists(c)} for c in preparation.columns],
        "label": None if label is None else _with_lists(label),
        "missing": preparation.missing,
    }


def from_json(raw: Mapping[str, Any], place: str) -> Preparation:
    """The same back; `place` is where it was read, for messages."""
    try:
        label = raw["label"]
        return Preparation(
            tuple(_column(dict(column)) for column in raw["columns"]),
            None if label is None else Label(**_with_tuples(label)),
            raw["missing"],
        )
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__} {error}"
        raise BadInput(f"{place} does not say how rows are prepared: {problem}") from None


def _column(raw: dict[str, Any]) -> Column:
    return KINDS[raw.pop("kind")](**_with_tuples(raw))


def _with_lists(record: Column | Label) -> dict[str, Any]:
    raw = record._asdict()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}


def _with_tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows lists only."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
