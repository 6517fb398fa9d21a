# SPDX-License-Identifier: Apache-2.0
"""A preparation that was agreed on: applied to a table instead of learnt from its rows.

One who has only a part of the rows must learn neither means nor the numbering of classes from it:
the same number would mean one thing here and another thing elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from agnosticfl.data.formats.tables import Table, check_column
from agnosticfl.data.preparation.apply import Notes, features_of, joined
from agnosticfl.data.preparation.fit import Batch
from agnosticfl.data.preparation.record import (
    Array,
    Category,
    Label,
    Number,
    Preparation,
    read_preparation,
)
from agnosticfl.data.tabular.options import Options, listed
from agnosticfl.errors import BadInput, check

INPUTS = ("x", "tokens")  # what a column of lists is called that models read
UNSCALED = (0.0, 1.0)  # mean and deviation
FAR = 5  # deviations


def agreed_preparation(options: Options, tables: Sequence[Table]) -> Preparation | None:
    """What `like` names, if no other option contradicts it and no table lacks a column."""
    if options.like is None:
        return None
    agreed = read_preparation(Path(options.like))
    for option, given, there in _contradictions(options, agreed):
        raise BadInput(f"{option} is {given}, but in {options.like} it is {there}")
    names = [column.name for column in agreed.columns]
    for table in tables:
        for name in names:
            check_column(table, name)
    check(
        options.split not in names,
        f"split is {options.split!r}, which is a feature in {options.like}",
    )
    return agreed


def found_by(agreed: Preparation, batches: Iterable[Batch], place: str) -> list[str]:
    """What these rows have that the rows which taught the preparation had not."""
    notes, training, rows = list[Notes](), 0, 0
    total = np.zeros(len(agreed.x_columns))
    for where, batch, chosen in batches:
        features, found = features_of(agreed, where, batch)
        notes.append(found)
        training, rows = training + int(chosen.sum()), rows + len(chosen)
        total += features["x"].sum(axis=0, dtype=float) if len(total) else 0
    check(training > 0, f"{place}: there is no training row")
    return joined(notes).lines() + list(_far_off(agreed, total / rows))


def _far_off(agreed: Preparation, means: np.ndarray) -> Iterator[str]:
    """Columns whose mean, in agreed deviations from the agreed mean, is hard to believe."""
    known = dict(zip(agreed.x_columns, means.tolist(), strict=True))
    for column in agreed.columns:
        if isinstance(column, Number) and column[1:3] != UNSCALED and abs(known[column.name]) > FAR:
            yield (
                f"column {column.name!r}: the mean of these rows is {known[column.name]:.3g} agreed"
                f" deviations from the agreed mean, {column.mean:.4g}; is it in the same unit?"
            )


def _contradictions(options: Options, agreed: Preparation) -> Iterator[tuple[str, str, str]]:
    """(option, what it says, what is agreed), of those that were given.

    An option with its usual value counts as not given.
    """
    label, usual = agreed.label, Options._field_defaults
    names = [column.name for column in agreed.columns]
    if options.features is not None and listed(options.features) != names:
        yield "features", ",".join(listed(options.features)), ",".join(names)
    known = [column.name for column in agreed.columns if isinstance(column, Category)]
    if not set(listed(options.categories)) <= set(known):
        yield "categories", ",".join(listed(options.categories)), ",".join(known) or "none"
    inputs = [c.name for c in agreed.columns if isinstance(c, Array) and c.feature in INPUTS]
    if options.input is not None and options.input not in inputs:
        yield "input", options.input, ",".join(inputs) or "none"
    if options.label is not None and (label is None or options.label != label.name):
        yield "label", options.label, "none" if label is None else label.name
    if options.classes is not None and not _same_classes(options.classes, label):
        yield "classes", ",".join(listed(options.classes)), _classes(label)
    if options.missing not in (usual["missing"], agreed.missing):
        yield "missing", options.missing, agreed.missing
    scaled = any(isinstance(c, Number) and c[1:3] != UNSCALED for c in agreed.columns)
    if options.scale != usual["scale"] and scaled:
        yield "scale", options.scale, "standard"


def _same_classes(given: str | Sequence[str], label: Label | None) -> bool:
    if label is None:
        return False
    if given == "each":
        return label.classes is not None and label.threshold is None
    return ",".join(listed(given)) == _classes(label)


def _classes(label: Label | None) -> str:
    """As the option `classes` would say it."""
    if label is None or label.classes is None:
        return "none"
    return ",".join(label.classes) if label.threshold is None else label.threshold
