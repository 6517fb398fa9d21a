# SPDX-License-Identifier: Apache-2.0
"""The first pass over a table: which domains, what kind of label, what kind of columns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import (
    Place,
    categories_of,
    is_text,
    no_numbers,
    numbers_of,
)
from agnosticfl.data.formats.limits import short
from agnosticfl.data.formats.tables import batches_of
from agnosticfl.data.preparation.fit import in_order
from agnosticfl.data.preparation.labels import SeenLabel
from agnosticfl.data.preparation.record import Array, Category, Column, Number, Preparation
from agnosticfl.data.tabular.options import Options, feature_columns, listed
from agnosticfl.data.tabular.owners import Owners, columns_to_read, domain_texts
from agnosticfl.errors import check


class Surveyed(NamedTuple):
    """What the first pass over all rows found."""

    domains: Mapping[str, int]  # domain -> rows, in the order of the domains
    label: SeenLabel | None
    columns: tuple[Column, ...]  # kinds, with nothing learnt yet
    texts: Mapping[str, str]  # column with numbers and texts -> the first text, with its place


def survey(owners: Owners, agreed: Preparation | None = None) -> Surveyed:
    """Reads everything once; with an `agreed` preparation only the domains are to be found."""
    options = owners.options
    names = feature_columns(options, owners.tables) if agreed is None else []
    seen = {name: _Seen(name, name in listed(options.categories)) for name in names}
    label = None if options.label is None or agreed else SeenLabel(options.label)
    domains: Counter[str] = Counter()
    wanted = columns_to_read(owners, [*names, *([label.name] if label else [])])
    for number, table in enumerate(owners.tables):
        for place, batch in batches_of(table, wanted):
            for entry in pc.value_counts(domain_texts(owners, number, place, batch)).to_pylist():
                domains[entry["values"]] += entry["counts"]
            if label is not None:
                label.add(place, batch)
            for column in seen.values():
                column.add(place, batch)
    check(domains.total() > 0, f"{owners.tables[0].place}: there are no examples")
    kinds = tuple(column.kind(options) for column in seen.values())
    columns = kinds if agreed is None else agreed.columns
    check_names(columns, options.label is not None)
    texts = {name: column.text for name, column in seen.items() if column.text and column.numbers}
    return Surveyed({name: domains[name] for name in in_order(domains)}, label, columns, texts)


def check_names(columns: Sequence[Column], with_label: bool) -> None:
    """No two features of a store may be called the same."""
    made = {"y": "the label's name"} if with_label else {}
    if any(not isinstance(column, Array) for column in columns):
        made["x"] = "to be made of the single values too; choose the features by name"
    for column in columns:
        if isinstance(column, Array):
            check(
                column.feature not in made,
                f"column {column.name!r} holds lists and a feature is called {column.feature!r},"
                f" which is {made.get(column.feature)}",
            )


class _Seen:
    """What is known of a column to learn from."""

    def __init__(self, name: str, category: bool):
        self.name = name
        self.category = category  # because somebody says so, or by its type
        self.array: Array | None = None
        self.text = ""  # the first value that is no number, with its place
        self.numbers = False  # whether some value is one

    def add(self, place: Place, batch: Any) -> None:
        column = batch[self.name]
        if pa.types.is_nested(column.type):
            if self.array is None:
                values = numbers_of(place, batch, self.name)
                self.array = Array(self.name, self.name, values.dtype.name, values.shape[1:])
            return
        if pa.types.is_dictionary(column.type):
            self.category = True
        if self.category or not is_text(column):
            categories_of(place, batch, self.name)  # refuses dates and the like
            return
        self._look(place, batch)

    def _look(self, place: Place, batch: Any) -> None:
        """Whether texts are numbers."""
        wrong = no_numbers(batch[self.name])
        if wrong.any() and not self.text:
            row = int(wrong.argmax())
            value = short(categories_of(place, batch, self.name)[row].as_py())
            self.text = f"{place.file}, row {place.row + row}: column {self.name!r} has {value}"
        if not self.numbers and not wrong.all():
            known = categories_of(place, batch, self.name).is_valid()
            self.numbers = bool((known.to_numpy(zero_copy_only=False) & ~wrong).any())

    def kind(self, options: Options) -> Column:
        is_input = options.input == self.name
        if self.array is not None:
            check(not self.category, f"column {self.name!r} holds lists, which are no categories")
            renamed = is_input and self.name != "tokens"  # what models of text read
            return self.array._replace(feature="x") if renamed else self.array
        check(
            not is_input,
            f"input is {self.name!r}, which holds single values; it is for a column of lists"
            " (columns of single values become the input by themselves)",
        )
        return Category(self.name, ()) if self.category or self.text else Number(self.name)
