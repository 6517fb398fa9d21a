# SPDX-License-Identifier: Apache-2.0
"""What was learnt from the training rows of a table, so that other rows can be made the same way.

It is kept as JSON: in a store, and wherever a trained model goes.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from agnosticfl.errors import BadInput, check, choose
from agnosticfl.options import Positive, check_value

FILE = "preparation.json"  # of a store, and of a federation's app
ABSENT = "(missing)"  # the category of rows that have none
LONGEST = 300  # characters of a message about a file that anybody may have written
COMPARED = re.compile(r"(>=|>|<=|<) *([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


class Number(NamedTuple):
    """A column of single numbers: v becomes (v − mean) / deviation in `x`."""

    name: str
    mean: float = 0.0  # 0 and 1 where nothing is scaled
    deviation: Positive = 1.0
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
    missing: Literal["impute", "refuse"] = "impute"

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


def from_json(raw: Any, place: str) -> Preparation:
    """The same back; `place` is where it was read, for messages."""
    try:
        label = raw["label"]
        made = Preparation(
            tuple(_column(dict(column)) for column in raw["columns"]),
            None if label is None else _record(Label, label),
            raw["missing"],
        )
        choose(made.missing, get_args(get_type_hints(Preparation)["missing"]), "missing")
        _check_sense(made)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = str(error) if isinstance(error, BadInput) else f"{type(error).__name__} {error}"
        line = " ".join(problem.split())[:LONGEST]
        raise BadInput(f"{place} does not say how rows are prepared: {line}") from None
    return made


def read_preparation(place: Path) -> Preparation:
    """From a file, or from a folder that holds one: a store, or a federation's app."""
    file = place / FILE if place.is_dir() else place
    check(file.is_file(), f"there is no {file}, which would say how rows are prepared")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    return from_json(raw, str(file))


def read_fitting(place: Path, columns: Sequence[Column]) -> Preparation:
    """What is there, if it is for columns of these names and kinds, in this order."""
    found = read_preparation(place)
    wanted, there = ([_kind_of(c) for c in some] for some in (columns, found.columns))
    for own, other in itertools.zip_longest(wanted, there, fillvalue="none"):
        check(own == other, f"{place} is for other columns: it has {other} where {own} is needed")
    return found


def _kind_of(column: Column) -> str:
    kinds = {kind: name for name, kind in KINDS.items()}
    flag = " with an indicator" if isinstance(column, Number) and column.indicator else ""
    return f"{kinds[type(column)]} {column.name!r}{flag}"


def _column(raw: dict[str, Any]) -> Column:
    return _record(KINDS[choose(raw.pop("kind"), KINDS, "kind of column")], raw)


R = TypeVar("R", bound=Number | Category | Array | Label)


def _record(kind: type[R], raw: Mapping[str, Any]) -> R:
    """One of these from its fields, each of which must have its type; JSON knows lists only."""
    hints = get_type_hints(kind, include_extras=True)
    for name, value in raw.items():
        choose(name, hints, f"field of a {kind.__name__.lower()}")
        check_value(hints[name], value, name)
    return kind(**{name: msgspec.convert(value, hints[name]) for name, value in raw.items()})


def _check_sense(preparation: Preparation) -> None:
    """Refuses what no training row can have taught."""
    check(len(preparation.columns) > 0, "there is no column")
    _check_different([column.name for column in preparation.columns], "columns")
    for column in preparation.columns:
        if isinstance(column, Category):
            check(len(column.categories) > 0, f"column {column.name!r} has no category")
            _check_different(column.categories, f"categories of {column.name!r}")
        if isinstance(column, Array):
            check(np.dtype(column.dtype).kind in "iuf", f"{column.dtype!r} is no type of numbers")
            check(min(column.shape, default=1) >= 1, f"{list(column.shape)} is no shape of numbers")
    label = preparation.label
    if label is None:
        return
    _check_different(label.classes or (), f"classes of {label.name!r}")
    check(label.classes is None or len(label.classes) > 0, f"label {label.name!r} has no class")
    if label.threshold is not None:
        label.compared()
        check(len(label.classes or ()) == 2, f"the threshold of {label.name!r} needs two classes")


def _check_different(names: Sequence[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    check(not twice, f"{what} are there twice: {', '.join(map(repr, twice))}")


def _with_lists(record: Column | Label) -> dict[str, Any]:
    raw = record._asdict()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}
