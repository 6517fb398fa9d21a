# SPDX-License-Identifier: Apache-2.0
"""A federated data set: examples that belong to clients, each with a domain."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.errors import BadInput, check, choose


class FederatedData(NamedTuple):
    """Examples in one array per feature, those of a client next to each other.

    The domain is a property of the example, so a client may hold several domains (the paper's data
    partition) or one (client partition). Arrays may be memory-mapped.
    """

    examples: Mapping[str, np.ndarray]  # name -> [n, ...]
    domain: np.ndarray  # [n] int32, in 0 … p−1
    offsets: np.ndarray  # [clients + 1]; client k holds examples offsets[k] … offsets[k+1]−1
    client_ids: Sequence[Any] | np.ndarray  # [clients]
    domains: tuple[str, ...]  # names, [p]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_domains(self) -> int:
        return len(self.domains)

    @property
    def num_examples(self) -> int:
        return len(self.domain)

    @property
    def sizes(self) -> np.ndarray:
        """Examples per client, n_k, of all clients."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: np.ndarray) -> np.ndarray:
        """n_k of these clients: the cost is that of the cohort, not of the data set."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def domain_index(self, name: str) -> int:
        """The number i of the domain called `name`."""
        return self.domains.index(choose(name, self.domains, "domain"))


class About(NamedTuple):
    """What is known of data beside its numbers."""

    name: str = ""
    licence: str = "unknown"
    labels: tuple[str, ...] | None = None  # the name of each class
    vocabulary: tuple[str, ...] | None = None  # the word of each token id
    # How a row of a raw table becomes features, as `data.preparation.record.to_json` gives it.
    preparation: Mapping[str, Any] | None = None


class Splits(NamedTuple):
    """The data of a task."""

    train: FederatedData
    test: FederatedData
    heldout: FederatedData | None = None
    vocabulary_size: int | None = None  # text: how many ids there are for `tokens`, if known
    release: Callable[[], None] = lambda: None  # gives back the memory that reading took
    digest: str | None = None  # of what it holds, if that is known without reading all of it
    about: About = About()  # names that go with the numbers


def digest_of(splits: Splits) -> str:
    """What tells this data from any other: a run belongs to its data."""
    if splits.digest is not None:
        return splits.digest
    total = hashlib.sha256()
    for name, data in (("train", splits.train), ("heldout", splits.heldout), ("test", splits.test)):
        if data is not None:
            arrays = {**data.examples, "/domain": data.domain, "/offsets": data.offsets}
            for key, array in sorted(arrays.items()):
                total.update(repr((name, key, array.dtype.str, array.shape)).encode())
                total.update(_content(array))
            total.update(repr((name, data.domains)).encode())
    return total.hexdigest()


def _content(array: np.ndarray) -> memoryview | bytes:
    """The numbers of an array as they lie in memory; of anything else, what it prints as."""
    plain = array.dtype.kind in "biufc"
    return np.ascontiguousarray(array).data if plain else repr(array.tolist()).encode()


def as_splits(
    parts: Mapping[str, FederatedData],
    place: str,
    about: About,
    release: Callable[[], None] = lambda: None,
) -> Splits:
    """The data of a task from its parts by name; `place` says where they come from."""
    for split in ("train", "test"):
        check(split in parts, f"{place} has no split {split!r}")
    size = None if about.vocabulary is None else len(about.vocabulary)
    return Splits(parts["train"], parts["test"], parts.get("heldout"), size, release, about=about)


def from_arrays(
    examples: Mapping[str, Any],
    clients: Any,
    domains: Any,
    domain_names: Sequence[str] | None = None,
) -> FederatedData:
    """A federated data set from plain arrays with one row per example.

    Args:
      examples: feature name -> array [n, ...].
      clients: [n], whom each example belongs to (numbers or strings).
      domains: [n], the domain of each example: a name, or a number from 0 on.
      domain_names: the domains in the order they should have; needed to name numbered domains, or
        to include one that has no example. By default the sorted names, or the numbers themselves.
    """
    arrays = {name: np.asarray(values) for name, values in examples.items()}
    client_column, domain_column = np.asarray(clients), np.asarray(domains)
    check(bool(arrays), "no feature was given; examples must hold at least one array")
    rows = len(client_column)
    check(rows > 0, "the data has no examples; at least one is needed")
    for name, column in {**arrays, "domains": domain_column}.items():
        check(
            column.ndim > 0 and len(column) == rows,
            f"{name!r} has shape {column.shape}, but there are {rows} client values;"
            " all must have one row per example",
        )
    domain, names = _domain_ids(domain_column, domain_names)
    client_ids, owner, sizes = np.unique(client_column, return_inverse=True, return_counts=True)
    order = np.argsort(owner, kind="stable")
    return FederatedData(
        examples={name: array[order] for name, array in arrays.items()},
        domain=domain[order],
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        client_ids=client_ids,
        domains=names,
    )


def no_examples(
    features: Mapping[str, tuple[str, Sequence[int]]], domains: tuple[str, ...]
) -> FederatedData:
    """What is known of examples that are somewhere else: name -> type and shape of a feature."""
    return FederatedData(
        {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in features.items()},
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
        (),
        domains,
    )


def only_domain(data: FederatedData, name: str) -> FederatedData:
    """The part of `data` in one domain: clients without an example of it are gone."""
    keep = np.flatnonzero(data.domain == data.domain_index(name))
    check(len(keep) > 0, f"domain {name!r} has no example; nothing to train on")
    owner = np.searchsorted(data.offsets, keep, side="right") - 1
    clients, sizes = np.unique(owner, return_counts=True)
    return data._replace(
        examples={key: array[keep] for key, array in data.examples.items()},
        domain=data.domain[keep],
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        client_ids=[data.client_ids[k] for k in clients],
    )


def only_rows(data: FederatedData, keep: np.ndarray) -> FederatedData:
    """The examples that `keep`, [n] booleans, says; all clients stay, some perhaps with none."""
    before = np.concatenate([[0], np.cumsum(keep)])
    return data._replace(
        examples={name: array[keep] for name, array in data.examples.items()},
        domain=data.domain[keep],
        offsets=before[data.offsets],
    )


def domain_counts(data: FederatedData) -> np.ndarray:
    """Examples of each domain, [p], counted part by part: the array may be larger than memory."""
    part, counts = 1 << 20, np.zeros(data.num_domains, np.int64)
    for start in range(0, data.num_examples, part):
        counts += np.bincount(data.domain[start : start + part], minlength=data.num_domains)
    return counts


def absent_domains(data: FederatedData, clients: np.ndarray) -> list[str]:
    """The domains of which none of these clients has an example."""
    there: set[int] = set()
    for k in clients:
        there |= set(np.unique(data.domain[data.offsets[k] : data.offsets[k + 1]]).tolist())
    return [name for i, name in enumerate(data.domains) if i not in there]


def _domain_ids(
    column: np.ndarray, names: Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    if np.issubdtype(column.dtype, np.integer):
        if names is None:
            names = [str(i) for i in range(int(column.max()) + 1)]
        bad = np.flatnonzero((column < 0) | (column >= len(names)))
        known, place = f"0 to {len(names) - 1}", column
    else:
        column = column.astype(str)
        names = sorted(set(column.tolist())) if names is None else names
        number = {name: i for i, name in enumerate(names)}
        place = np.array([number.get(name, -1) for name in column.tolist()])
        known = ", ".join(names)
        bad = np.flatnonzero(place < 0)
    if len(bad):
        raise BadInput(f"example {bad[0]} has unknown domain {column[bad[0]]!r}; known: {known}")
    return place.astype(np.int32), tuple(names)


def client_domain_counts(data: FederatedData, clients: slice) -> np.ndarray:
    """Examples of each domain that each of these clients has, [clients, p]."""
    p = data.num_domains
    offsets = data.offsets[clients.start : clients.stop + 1]
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    cells = owner * p + data.domain[offsets[0] : offsets[-1]]
    return np.bincount(cells, minlength=(len(offsets) - 1) * p).reshape(-1, p)


def clients_with(data: FederatedData) -> np.ndarray:
    """How many clients have examples of each domain, [p]."""
    several = (client_domain_counts(data, part) > 0 for part in pieces_of_clients(data))
    return sum((some.sum(axis=0) for some in several), np.zeros(data.num_domains, int))


def main_domain(data: FederatedData) -> np.ndarray:
    """The domain of most of its examples, for each client; the first of equals."""
    pieces = [client_domain_counts(data, part).argmax(axis=1) for part in pieces_of_clients(data)]
    return np.concatenate(pieces)


def pieces_of_clients(data: FederatedData) -> Iterator[slice]:
    """All clients, about four million examples at a time."""
    return slices(data.num_clients, max(1, data.num_clients * 2**22 // data.num_examples))


def slices(length: int, step: int = 1 << 18) -> Iterator[slice]:
    """Cuts a long column into pieces that fit in memory."""
    return (slice(first, min(first + step, length)) for first in range(0, length, step))
