# SPDX-License-Identifier: Apache-2.0
"""Learns from training rows, in one pass over a stream, how rows become features."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import NUMERAL, Place, categories_of, floats_of
from agnosticfl.data.formats.limits import short
from agnosticfl.data.preparation.apply import Notes, check_missing
from agnosticfl.data.preparation.record import (
    ABSENT,
    Category,
    Column,
    Label,
    Number,
    Preparation,
)
from agnosticfl.errors import BadInput, check

BLOCK = 4096  # values that are added up at a time
MANY, MOST = 100, 10_000  # categories of a column: unasked, and if one insists
FEW = 20  # categories of which no one asks whether they are names of rows


class Plan(NamedTuple):
    """What is to be learnt: of each column its kind, with nothing in it yet."""

    place: str  # of the table, for messages
    columns: tuple[Column, ...]
    label: Label | None = None
    missing: Literal["impute", "refuse"] = "impute"
    scaled: bool = True
    insisted: frozenset[str] = frozenset()  # columns that are categories, however many
    texts: Mapping[str, str] = {}  # column with numbers and texts -> the first text and its place


# Some rows, and which of them are training rows, [n] bool.
Batch: TypeAlias = tuple[Place, Any, np.ndarray]


def fit(plan: Plan, batches: Iterable[Batch]) -> tuple[Preparation, list[str]]:
    """What training rows say, and what a person should know of it.

    Other rows are only looked at for what they have that training rows do not.
    """
    learners = [_learner(plan, column) for column in plan.columns]
    rows = 0
    for place, batch, training in batches:
        rows += int(training.sum())
        for learner in learners:
            learner.add(place, batch, training)
    learnt = [learner.learnt() for learner in learners]
    columns = tuple(column for column in learnt if column is not None)
    check(rows > 0, f"{plan.place}: there is no training row")
    check(len(columns) > 0, f"{plan.place}: no column has a value in any training row")
    notes = [note for learner in learners for note in learner.notes()]
    return Preparation(columns, plan.label, plan.missing), notes


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Different texts: numbers by size, anything else by alphabet."""
    found = sorted(set(values))
    numbers = all(re.search(NUMERAL, text) for text in found)
    return tuple(sorted(found, key=float) if numbers else found)


def _learner(plan: Plan, column: Column) -> "_Untouched | _Numbers | _Categories":
    if isinstance(column, Number):
        return _Numbers(plan, column.name)
    return _Categories(plan, column.name) if isinstance(column, Category) else _Untouched(column)


class _Untouched:
    """Lists stay as they are."""

    def __init__(self, column: Column):
        self.column = column

    def add(self, place: Place, batch: Any, training: np.ndarray) -> None:
        pass

    def learnt(self) -> Column:
        return self.column

    def notes(self) -> list[str]:
        return []


class _Numbers:
    """Mean and deviation of a column of numbers, and whether some are missing."""

    def __init__(self, plan: Plan, name: str):
        self.plan, self.name, self.moments = plan, name, _Moments()
        self.missing, self.missing_outside = 0, 0  # training rows without a value, and others

    def add(self, place: Place, batch: Any, training: np.ndarray) -> None:
        values, missing = floats_of(place, batch, self.name)
        check_missing(self.plan.missing, self.name, place, missing)
        self.moments.add(values[training & ~missing])
        self.missing += int((training & missing).sum())
        self.missing_outside += int((~training & missing).sum())

    def learnt(self) -> Number | None:
        mean, deviation = self.moments.finish()
        if self.moments.count == 0:
            return None
        scaled = (mean, deviation) if self.plan.scaled else (0.0, 1.0)
        return Number(self.name, *scaled, fill=mean, indicator=self.missing > 0)

    def notes(self) -> list[str]:
        if self.moments.count == 0:
            return [_empty(self.name)]
        outside = self.missing_outside if self.missing == 0 else 0
        return _outside(Notes(Counter(), Counter({self.name: outside} if outside else {})))


class _Categories:
    """The categories of a column in training rows and in others."""

    def __init__(self, plan: Plan, name: str):
        self.plan, self.name, self.rows = plan, name, 0
        self.training: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()

    def add(self, place: Place, batch: Any, training: np.ndarray) -> None:
        text = categories_of(place, batch, self.name)
        missing = text.is_null().to_numpy(zero_copy_only=False)
        check_missing(self.plan.missing, self.name, place, missing)
        text = pc.fill_null(text, ABSENT)
        for counter, rows in ((self.training, training), (self.outside, ~training)):
            for entry in pc.value_counts(text.filter(rows)).to_pylist():
                counter[entry["values"]] += entry["counts"]
        self.rows += len(text)
        self._check_number(MOST if self.name in self.plan.insisted else MANY)

    def learnt(self) -> Category | None:
        number = len(self.training | self.outside)
        if self.name not in self.plan.insisted and number > FEW:
            self._check_number(self.rows // 2)
        known = in_order(self.training.keys() - {ABSENT})
        absent = (ABSENT,) if ABSENT in self.training else ()
        return Category(self.name, (*known, *absent)) if known else None

    def notes(self) -> list[str]:
        if not self.training.keys() - {ABSENT}:
            return [_empty(self.name)]
        unknown = {key: n for key, n in self.outside.items() if key not in self.training}
        return _outside(Notes(Counter({(self.name, k): n for k, n in unknown.items()}), Counter()))

    def _check_number(self, limit: int) -> None:
        values = self.training | self.outside
        if len(values) <= limit:
            return
        what_to_do = "leave it out (features)"
        if limit < MOST:
            what_to_do += ", or name it in categories to insist"
        if self.name in self.plan.texts:  # numbers, and something that is none
            raise BadInput(f"{self.plan.texts[self.name]}, which is no number; correct it,"
                           f" or if these are categories, {what_to_do}")  # fmt: skip
        some = ", ".join(short(value, 30) for value in list(values)[:3])
        raise BadInput(
            f"{self.plan.place}: column {self.name!r} has {len(values)} different texts in"
            f" {self.rows} rows ({some}, …), too many for categories; {what_to_do}"
        )


class _Moments:
    """Mean and deviation of a stream of numbers.

    The numbers are added up in blocks of one size (Chan, Golub and LeVeque), so that the result is
    the same to the last bit however the stream is cut into batches.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.least, self.largest = math.inf, -math.inf
        self.waiting = np.zeros(0)

    def add(self, values: np.ndarray) -> None:
        waiting = np.concatenate([self.waiting, values])
        whole = len(waiting) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            self._add_block(waiting[start : start + BLOCK])
        self.waiting = waiting[whole:]

    def finish(self) -> tuple[float, float]:
        """Mean and deviation; a constant has its own value exactly, and deviation 1."""
        if len(self.waiting):
            self._add_block(self.waiting)
            self.waiting = self.waiting[:0]
        if self.least >= self.largest:
            return self.least, 1.0
        return self.mean, math.sqrt(self.squares / max(self.count, 1)) or 1.0

    def _add_block(self, values: np.ndarray) -> None:
        mean, number = float(values.mean()), len(values)
        step, count = mean - self.mean, self.count + number
        self.squares += float(((values - mean) ** 2).sum())
        self.squares += step * step * self.count * number / count
        self.mean, self.count = self.mean + step * number / count, count
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))


def _empty(name: str) -> str:
    return f"column {name!r} has no value in any training row, so it is left out"


def _outside(notes: Notes) -> list[str]:
    return [f"outside training, {line}" for line in notes.lines()]
