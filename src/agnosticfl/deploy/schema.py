# SPDX-License-Identifier: Apache-2.0
"""What gives the numbers of an example their meaning, and in what two stores differ.

A sum over clients means something only if the third column is the age everywhere, in the same unit,
and class 0 the same class. Rows, domains, sizes and names of data sets are no part of it: of two
hospitals that prepared their tables with one preparation the schema is the same.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from agnosticfl.data.preparation.record import (
    Category,
    Column,
    Label,
    Number,
    Preparation,
    from_json,
)
from agnosticfl.errors import BadInput
from agnosticfl.runs.about import Facts

SHOWN = 5  # differences that are named
LONGEST = 300  # characters of one, since a name in a file may have any length
RAW = "was prepared from a raw table (`data prepare arrays`)"


class _Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one example."""

    dtype: str
    shape: list[int]


class _Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of token ids: how many words, and a digest of them in their order."""

    words: int
    sha256: str


class _Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in the file."""

    features: dict[str, _Feature]
    labels: list[str] | None  # names of classes, where no preparation has them
    vocabulary: _Vocabulary | None
    preparation: dict[str, Any] | None


def schema_of(facts: Facts) -> dict[str, Any]:
    """The schema of some data, as plain JSON."""
    data = facts.data
    features = {n: _Feature(dtype, list(shape)) for n, (dtype, shape) in facts.features.items()}
    words = data.vocabulary
    made = _Schema(
        features=dict(sorted(features.items())),
        labels=None if data.labels is None or data.preparation else list(data.labels),
        vocabulary=None if words is None else _Vocabulary(len(words), digest(list(words))),
        preparation=None if data.preparation is None else dict(data.preparation),
    )
    return msgspec.to_builtins(made)


def read_schema(raw: Any, place: str) -> dict[str, Any]:
    """The same back from JSON that anybody may have written."""
    try:
        found = msgspec.convert(raw, _Schema)
    except msgspec.ValidationError as error:
        raise BadInput(f"{place}: {error}") from None
    if found.preparation is not None:
        from_json(found.preparation, place)
    return msgspec.to_builtins(found)


def digest(value: Any) -> str:
    """One of plain JSON, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(agreed: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """In what data of one's own differs from what is agreed on, a sentence each.

    Places are counted from 1, classes from 0, which is their number.
    """
    found = [
        *_preparations(agreed["preparation"], own["preparation"]),
        *_classes(agreed["labels"], own["labels"]),
        *_vocabularies(agreed["vocabulary"], own["vocabulary"]),
        *_features(agreed["features"], own["features"]),
    ]
    return [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in found]


def shown(found: Sequence[str]) -> list[str]:
    """The first of many differences, and how many there are beside."""
    more = len(found) - SHOWN
    return [*found[:SHOWN], *([f"and {more} more differences"] if more > 0 else [])]


def check_schema(agreed: Mapping[str, Any], own: Mapping[str, Any], place: str) -> None:
    """Refuses data that differs from what is agreed on; `place` says whose it is."""
    found = differences(agreed, own)
    if found:
        raise BadInput(f"{place} does not fit the task: {'; '.join(shown(found))}")


def _preparations(agreed: Any, own: Any) -> Iterator[str]:
    if (agreed is None) != (own is None):
        yield (
            f"the task's data {RAW}, this data was not"
            if own is None
            else (f"this data {RAW}, the task's was not")
        )
        return
    if agreed is None:
        return
    theirs, ours = from_json(agreed, "the task"), from_json(own, "this data")
    yield from _labels(theirs.label, ours.label)
    yield from _columns(theirs, ours)
    yield from _unequal("what is done with missing values", theirs.missing, ours.missing)


def _labels(agreed: Label | None, own: Label | None) -> Iterator[str]:
    if agreed is None or own is None:
        names = (None if label is None else label.name for label in (agreed, own))
        yield from _unequal("the label", *names)
        return
    yield from _unequal("the label", agreed.name, own.name)
    yield from _unequal("label: its threshold", agreed.threshold, own.threshold)
    yield from _classes(agreed.classes, own.classes)


def _classes(agreed: Sequence[str] | None, own: Sequence[str] | None) -> Iterator[str]:
    if agreed is None or own is None:
        if agreed is not own:
            here, there = ("classes", "none") if agreed is None else ("no classes", "some")
            yield f"label: there are {here} here, the task has {there}"
        return
    for number, (theirs, ours) in enumerate(zip_longest(agreed, own)):
        if ours is None:
            yield f"label: there is no class {number} here, the task has {theirs!r}"
        elif theirs is None:
            yield f"label: class {number}, {ours!r}, is not in the task"
        else:
            yield from _unequal(f"label: class {number}", theirs, ours)


def _columns(agreed: Preparation, own: Preparation) -> Iterator[str]:
    yield from _names("column", "", [c.name for c in agreed.columns], [c.name for c in own.columns])
    ours = {column.name: column for column in own.columns}
    for column in agreed.columns:
        if column.name in ours:
            yield from _column(column, ours[column.name])


def _column(agreed: Column, own: Column) -> Iterator[str]:
    name = repr(agreed.name)
    if type(agreed) is not type(own):
        yield from _unequal(f"column {name}", *(type(c).__name__.lower() for c in (agreed, own)))
    elif isinstance(agreed, Category) and isinstance(own, Category):
        yield from _names("category", f" of column {name}", agreed.categories, own.categories)
    else:
        words = {"indicator": "whether a column says what is missing"}
        theirs = agreed._asdict()
        for key, value in own._asdict().items():
            what = words.get(key, key) if isinstance(own, Number) else f"the {key}"
            yield from _unequal(f"{what} of {name}", theirs[key], value)


def _vocabularies(agreed: Any, own: Any) -> Iterator[str]:
    if agreed == own:
        return
    counts = (None if some is None else some["words"] for some in (agreed, own))
    lines = list(_unequal("the number of words in the vocabulary", *counts))
    yield from lines or ["the vocabulary has other words, or another order, than the task's"]


def _features(agreed: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    yield from _names("feature", "", sorted(agreed), sorted(own))
    for name in sorted(agreed.keys() & own.keys()):
        forms = (f"{form['dtype']} {form['shape']}" for form in (agreed[name], own[name]))
        yield from _unequal(f"feature {name!r}", *forms)


def _names(what: str, of: str, agreed: Sequence[str], own: Sequence[str]) -> Iterator[str]:
    """Names that lack, that are too many, or that are the same in another order."""
    for name in own:
        if name not in agreed:
            yield f"{what} {name!r}{of} is not in the task"
    for name in agreed:
        if name not in own:
            yield f"{what} {name!r}{of} is in the task, and not here"
    if set(agreed) == set(own):
        for place, (theirs, ours) in enumerate(zip(agreed, own, strict=True), start=1):
            if theirs != ours:
                yield f"{what} {place}{of} is {ours!r}, the task has {theirs!r} there"


def _unequal(what: str, agreed: Any, own: Any) -> Iterator[str]:
    if agreed != own:
        here, there = ("none" if value is None else repr(value) for value in (own, agreed))
        yield f"{what} is {here}, the task has {there}"
