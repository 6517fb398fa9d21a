# SPDX-License-Identifier: Apache-2.0
"""A source read into memory, for data that is small enough."""

import warnings
from typing import Any

import numpy as np

from agnosticfl.core.federated import About, FederatedData, Splits, as_splits, from_arrays
from agnosticfl.core.signature import keywords_of, showing
from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.preparation.record import to_json
from agnosticfl.data.source import Rows, Source
from agnosticfl.data.store.rows import check_rows, check_source, check_totals


def collect(source: Source) -> dict[str, FederatedData]:
    """Split -> data set, with the same checks and the same order as a store."""
    check_source(source)
    pieces: dict[str, list[Rows]] = {}
    done = 0
    for rows in source.rows():
        check_rows(source, rows, done)
        pieces.setdefault(rows.split, []).append(rows)
        done += len(rows.clients)
    p = len(source.domains)
    counts = {
        split: np.bincount(np.concatenate([rows.domain for rows in some]), minlength=p)
        for split, some in pieces.items()
    }
    check_totals(source, counts)
    return {split: _joined(source, some) for split, some in pieces.items()}


def collect_splits(source: Source) -> Splits:
    """The same as the data of a task; what a person should know of it is a warning."""
    parts = collect(source)
    for note in source.notes:
        warnings.warn(note, stacklevel=3)
    steps = source.preparation
    about = About(
        source.name,
        source.licence,
        source.labels,
        source.vocabulary,
        None if steps is None else to_json(steps),
        source.given,
    )
    return as_splits(parts, source.name, about)


@showing(keywords_of(from_frame, skipped=1))
def split_frame(frame: Any, **options: Any) -> Splits:
    """The data of a task from a raw frame (pandas, Polars, …) whose rows have clients and domains.

    `client`, `domain`, `label` and `features` name columns; `test_fraction` and `heldout_fraction`
    of the clients are kept apart, or `split` names a column that says so. Numbers are scaled,
    texts are categories, missing values are filled and marked; `Splits.about` says how. The options
    are those of `agnosticfl data prepare arrays`.
    """
    return collect_splits(from_frame(frame, **options))


def _joined(source: Source, pieces: list[Rows]) -> FederatedData:
    return from_arrays(
        {
            name: np.concatenate([rows.features[name] for rows in pieces])
            for name in source.features
        },
        # Objects, because numpy's own texts lose a NUL at the end.
        clients=np.array([client for rows in pieces for client in rows.clients], object),
        domains=np.concatenate([rows.domain for rows in pieces]),
        domain_names=source.domains,
    )
