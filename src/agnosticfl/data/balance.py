# SPDX-License-Identifier: Apache-2.0
"""The label of a store by domain: how many examples of each class, or what numbers."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from agnosticfl.core.federated import FederatedData, slices
from agnosticfl.data.store.reader import Store

MOST = 100_000  # classes without a name; larger numbers are something else


class Target(NamedTuple):
    """The numbers to predict, of one domain in one split."""

    mean: float
    deviation: float
    least: float
    largest: float


class Balance(NamedTuple):
    """Of one split: for each domain its classes, or its numbers."""

    classes: np.ndarray | None  # [p, classes] examples
    targets: tuple[Target | None, ...] | None  # [p]; None where a domain has no example


def number_of_classes(store: Store) -> int | None:
    """How many classes there are, by their names or else by the labels; None without classes."""
    feature = store.meta.features.get("y")
    if feature is None or feature.shape or np.dtype(feature.dtype).kind not in "iu":
        return None
    if store.meta.labels is not None:
        return len(store.meta.labels)
    pieces = [data.examples["y"][part] for data in store.splits.values() for part in _parts(data)]
    least, largest = min(y.min() for y in pieces), max(y.max() for y in pieces)
    return int(largest) + 1 if least >= 0 and largest < MOST else None


def class_names(store: Store) -> tuple[str, ...] | None:
    """The names of the classes; without names, their numbers."""
    number = number_of_classes(store)
    return None if number is None else store.meta.labels or tuple(map(str, range(number)))


def balances(store: Store) -> Mapping[str, Balance]:
    """Split -> what its labels are, read a piece at a time."""
    number = number_of_classes(store)
    feature = store.meta.features.get("y")
    is_target = feature is not None and not feature.shape and feature.dtype.startswith("float")
    return {
        split: Balance(
            None if number is None else _class_counts(data, number),
            _targets(data) if is_target else None,
        )
        for split, data in store.splits.items()
    }


def _parts(data: FederatedData) -> Iterator[slice]:
    return slices(data.num_examples)


def _class_counts(data: FederatedData, number: int) -> np.ndarray:
    p = data.num_domains
    counts = np.zeros(p * number, np.int64)
    for part in _parts(data):
        cells = data.domain[part].astype(np.int64) * number + data.examples["y"][part]
        counts += np.bincount(cells, minlength=p * number)
    return counts.reshape(p, number)


def _targets(data: FederatedData) -> tuple[Target | None, ...]:
    p = data.num_domains
    count, total, squares = np.zeros(p), np.zeros(p), np.zeros(p)
    least, largest = np.full(p, np.inf), np.full(p, -np.inf)
    for part in _parts(data):
        domain, y = data.domain[part], data.examples["y"][part].astype(float)
        count += np.bincount(domain, minlength=p)
        total += np.bincount(domain, y, minlength=p)
        np.minimum.at(least, domain, y)
        np.maximum.at(largest, domain, y)
    mean = total / np.maximum(count, 1)
    for part in _parts(data):  # again: about the mean, so that nothing cancels
        domain, y = data.domain[part], data.examples["y"][part].astype(float)
        squares += np.bincount(domain, (y - mean[domain]) ** 2, minlength=p)
    columns = (mean, np.sqrt(squares / np.maximum(count, 1)), least, largest)
    return tuple(
        Target(*(float(column[i]) for column in columns)) if count[i] else None for i in range(p)
    )
