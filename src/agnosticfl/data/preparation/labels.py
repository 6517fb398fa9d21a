# SPDX-License-Identifier: Apache-2.0
"""What kind of label a column is: classes by name, classes by a threshold, or a number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import (
    Place,
    categories_of,
    is_text,
    is_truth,
    no_numbers,
    refuse_first,
)
from agnosticfl.data.formats.limits import short
from agnosticfl.data.preparation.fit import in_order
from agnosticfl.data.preparation.record import OPPOSITE, Label
from agnosticfl.errors import BadInput, check

MOST = 10_000  # classes


class SeenLabel:
    """What one pass over a label's column tells."""

    def __init__(self, name: str):
        self.name = name
        self.values: set[str] | None = set()  # None: more than MOST
        self.text = ""  # the first value that is no number, with its place; empty if all are
        self.truth = True  # whether all are truth values

    def add(self, place: Place, batch: Any) -> None:
        column = batch[self.name]
        text = categories_of(place, batch, self.name)
        missing = text.is_null().to_numpy(zero_copy_only=False)
        refuse_first(place, self.name, missing, "has no value, but it is the label")
        self.truth &= is_truth(column)
        if self.values is not None:
            self.values.update(pc.unique(text).to_pylist())
            self.values = self.values if len(self.values) <= MOST else None
        wrong = _wrong(column)
        if wrong.any() and not self.text:
            row = int(wrong.argmax())
            self.text = f"{place.file}, row {place.row + row}: {short(text[row].as_py())}"

    def label(self, classes: str | Sequence[str] | None) -> tuple[Label, list[str]]:
        """The label that `classes` asks for, and what a person should know of it."""
        if classes is None:
            return self._by_itself()
        if classes == "none":
            return self._number(), []
        if classes == "each":
            return self._each(), []
        if isinstance(classes, str) and classes.startswith(("<", ">")):
            return self._threshold(classes), []
        return self._named([classes] if isinstance(classes, str) else list(classes)), []

    def _by_itself(self) -> tuple[Label, list[str]]:
        if self.truth or self.text:
            return self._each(), []
        if self.values is not None and self.values <= {"0", "1"}:
            note = (
                f"label {self.name!r} has only the values 0 and 1, so it is taken for two classes;"
                " classes = none makes it a number to predict"
            )
            return Label(self.name, ("0", "1")), [note]
        return self._number(), []

    def _number(self) -> Label:
        check(not self.text, f"label {self.name!r} is to be a number, but has ({self.text})")
        return Label(self.name, None)

    def _each(self) -> Label:
        if self.values is None:
            raise BadInput(f"label {self.name!r} has over {MOST} different values to be classes")
        return Label(self.name, in_order(self.values))

    def _threshold(self, threshold: str) -> Label:
        label = Label(self._number().name, ("", ""), threshold)
        sign, _ = label.compared()
        limit = threshold.removeprefix(sign).strip()
        names = f"{self.name} {OPPOSITE[sign]} {limit}", f"{self.name} {sign} {limit}"
        return label._replace(classes=names)

    def _named(self, classes: Sequence[str]) -> Label:
        check(
            len(set(classes)) == len(classes) > 1 and all(classes),
            f"classes of {self.name!r} are {', '.join(classes)}; give each, none, a threshold such"
            " as >0, or at least two different names with commas",
        )
        return Label(self.name, tuple(classes))


def _wrong(column: Any) -> np.ndarray:
    """Where a label is no number: in a text that says so, and wherever it is a category by type."""
    if is_text(column):
        return no_numbers(column)
    return np.full(len(column), pa.types.is_dictionary(column.type))
