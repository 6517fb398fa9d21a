# SPDX-License-Identifier: Apache-2.0
"""A source from raw tables: surveyed, split, learnt from, and then read row by row."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.data.formats.tables import Table
from agnosticfl.data.preparation.apply import features_of, label_values
from agnosticfl.data.preparation.fit import Batch, Plan, fit
from agnosticfl.data.preparation.record import Array, Label, Preparation
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.tabular.dealing import Splitter, splitters
from agnosticfl.data.tabular.like import agreed_preparation, found_by
from agnosticfl.data.tabular.notes import notes_on
from agnosticfl.data.tabular.options import Options, check_table_options, listed
from agnosticfl.data.tabular.owners import Owners, Piece, owners_of, pieces
from agnosticfl.data.tabular.survey import Surveyed, survey


class _Counts(NamedTuple):
    """Filled while the second pass reads."""

    domains: dict[str, np.ndarray]  # split -> rows of each domain
    classes: Counter[tuple[str, int]]  # (split, class) -> rows


def table_source(name: str, tables: Sequence[Table], options: Options) -> Source:
    """All of these tables as one source."""
    agreed = agreed_preparation(options, tables)
    if agreed is not None:
        options = options._replace(label=agreed.label.name if agreed.label else None)
    check_table_options(options, tables)
    owners = owners_of(tables, options)
    surveyed = survey(owners, agreed)
    owners = owners._replace(domains=surveyed.domains)
    label, notes = (agreed.label, []) if agreed else _label(surveyed, options)
    make_splitter = splitters(owners, label)
    columns = _columns(owners, surveyed, label)
    counts = _Counts({}, Counter())
    seen = _counted(pieces(owners, columns), make_splitter(), label, counts, len(owners.domains))
    if agreed is None:
        preparation, found = fit(_plan(name, surveyed, label, options), seen)
    else:
        preparation, found = agreed, found_by(agreed, seen, name)
    domains = tuple(owners.domains)
    notes += [f"{text}, so its column is taken for categories" for text in surveyed.texts.values()]
    notes += found + notes_on(options, domains, counts.domains, counts.classes, preparation)

    def rows() -> Iterator[Rows]:
        split = make_splitter()
        for piece in pieces(owners, columns):
            yield from _by_split(split(piece), piece, _features(preparation, piece))

    return Source(
        name=name,
        licence=options.licence,
        domains=domains,
        features=_schema(preparation),
        rows=rows,
        total=sum(owners.domains.values()),
        labels=None if label is None else label.classes,
        preparation=preparation,
        notes=tuple(notes),
        given=() if agreed is None else ("preparation",),
    )


def _label(surveyed: Surveyed, options: Options) -> tuple[Label | None, list[str]]:
    if surveyed.label is None:
        return None, []
    classes: Any = options.classes
    is_word = classes is None or (isinstance(classes, str) and "," not in classes)
    return surveyed.label.label(classes if is_word else listed(classes))


def _columns(owners: Owners, surveyed: Surveyed, label: Label | None) -> list[str]:
    """What the passes after the first one read, beside client and domain."""
    also = [None if label is None else label.name, owners.options.split]
    return [column.name for column in surveyed.columns] + [name for name in also if name]


def _plan(place: str, surveyed: Surveyed, label: Label | None, options: Options) -> Plan:
    return Plan(
        place,
        surveyed.columns,
        label,
        options.missing,
        options.scale == "standard",
        frozenset(listed(options.categories)),
        surveyed.texts,
    )


def _counted(
    some: Iterator[Piece], split: Splitter, label: Label | None, counts: _Counts, p: int
) -> Iterator[Batch]:
    """Which rows are training rows; the rows of every split are counted on the way."""
    for piece in some:
        splits = split(piece)
        classes = None if label is None else label_values(label, piece.place, piece.batch)
        for name in np.unique(splits).tolist():
            chosen = splits == name
            rows = np.bincount(piece.domain[chosen], minlength=p)
            counts.domains[name] = counts.domains.get(name, 0) + rows
            if label is not None and label.classes is not None and classes is not None:
                counts.classes.update((name, k) for k in classes[chosen].tolist())
        yield piece.place, piece.batch, splits == "train"


def _features(preparation: Preparation, piece: Piece) -> dict[str, np.ndarray]:
    features, _ = features_of(preparation, piece.place, piece.batch)
    if preparation.label is not None:
        features["y"] = label_values(preparation.label, piece.place, piece.batch)
    return features


def _by_split(
    split: np.ndarray, piece: Piece, features: Mapping[str, np.ndarray]
) -> Iterator[Rows]:
    for name in np.unique(split).tolist():
        chosen = np.flatnonzero(split == name)
        columns = {key: values[chosen] for key, values in features.items()}
        clients = [piece.client[row] for row in chosen.tolist()]
        yield Rows(name, clients, piece.domain[chosen], columns)


def _schema(preparation: Preparation) -> dict[str, Feature]:
    arrays = [c for c in preparation.columns if isinstance(c, Array)]
    schema = {c.feature: Feature(c.dtype, c.shape) for c in arrays}
    if preparation.x_columns:
        schema["x"] = Feature("float32", (len(preparation.x_columns),))
    if preparation.label is not None:
        kind = "float32" if preparation.label.classes is None else "int32"
        schema["y"] = Feature(kind, ())
    return schema
