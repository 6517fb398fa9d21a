# SPDX-License-Identifier: Apache-2.0
"""Checks what a source gives before it gets into a store."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.source import SPLITS, Feature, Rows, Source
from agnosticfl.data.splits import LONGEST_ID
from agnosticfl.errors import BadInput, check, choose


def check_source(source: Source) -> None:
    """Refuses a source whose own description cannot be stored."""
    names = source.domains
    check(
        len(names) > 0 and len(set(names)) == len(names) and all(names),
        f"{source.name}: the domains must be different names, at least one; got {list(names)}",
    )
    check(len(source.features) > 0, f"{source.name}: there is no feature to store")
    for name, feature in source.features.items():
        check(
            bool(name) and np.dtype(feature.dtype).kind in "iuf" and 0 not in feature.shape,
            f"{source.name}: feature {name!r} is {feature.dtype} {list(feature.shape)};"
            " it needs a name, a type of integers or floats, and a shape without zeros",
        )


def check_rows(source: Source, rows: Rows, first: int) -> Any:
    """Refuses rows that do not fit their source; `first` is the number of their first row.

    Returns the clients as an Arrow column.
    """
    place = f"{source.name}, rows from {first} on"
    choose(rows.split, SPLITS, f"split ({place})")
    number = len(rows.clients)
    _check_domains(source, rows.domain, number, first)
    missing = rows.features.keys() ^ source.features.keys()
    check(
        not missing,
        f"{place}: features are {sorted(rows.features)} instead of {sorted(source.features)}",
    )
    for name, feature in source.features.items():
        _check_feature(
            f"{source.name}, feature {name!r}", rows.features[name], feature, number, first
        )
    return _client_column(source.name, rows.clients, first)


def check_totals(source: Source, domain_counts: Mapping[str, np.ndarray]) -> None:
    """Refuses data without examples, or with a domain that nothing can be learnt about.

    A store may have no training rows at all: it is there to test on.
    """
    check(bool(domain_counts), f"{source.name}: there are no examples")
    train = domain_counts.get("train", np.ones(len(source.domains), int))
    absent = [name for name, count in zip(source.domains, train, strict=True) if count == 0]
    check(not absent, f"{source.name}: no example in train of domain {', '.join(absent)}")


def _check_domains(source: Source, domain: np.ndarray, number: int, first: int) -> None:
    p = len(source.domains)
    check(
        domain.shape == (number,) and domain.dtype.kind in "iu",
        f"{source.name}, rows from {first} on: {number} clients, but domains of type"
        f" {domain.dtype} and shape {list(domain.shape)}; one integer a row is needed",
    )
    bad = np.flatnonzero((domain < 0) | (domain >= p))
    if len(bad):
        raise BadInput(
            f"{source.name}, row {first + bad[0]}: domain {domain[bad[0]]} is not from 0 to {p - 1}"
        )


def _check_feature(
    place: str, values: np.ndarray, feature: Feature, number: int, first: int
) -> None:
    check(
        values.dtype == np.dtype(feature.dtype) and values.shape == (number, *feature.shape),
        f"{place}, rows from {first} on: {values.dtype} {list(values.shape)}"
        f" instead of {feature.dtype} {[number, *feature.shape]}",
    )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        raise BadInput(f"{place}, row {first + bad[0]}: {values[tuple(bad)]} is no finite number")


def _client_column(name: str, clients: Sequence[str], first: int) -> Any:
    try:
        column = pa.array(clients, pa.string())
    except (pa.ArrowException, TypeError, UnicodeError) as error:
        raise BadInput(f"{name}, rows from {first} on: a client id is no text: {error}") from None
    length = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero((length == 0) | (length > LONGEST_ID))
    if len(bad):
        raise BadInput(
            f"{name}, row {first + bad[0]}: the client id has {length[bad[0]]} bytes;"
            f" it must have from 1 to {LONGEST_ID}"
        )
    return column
