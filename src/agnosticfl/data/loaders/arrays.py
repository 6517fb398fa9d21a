# SPDX-License-Identifier: Apache-2.0
"""Anyone's own data: a table with a client column and a domain column.

Columns of single numbers become one float32 feature `x`, in their order; a column of lists (an
image, a sentence of token ids) stays a feature of its own name; the label becomes `y`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import Place, numbers_of, text_of
from agnosticfl.data.formats.tables import Table, frame_table, open_table
from agnosticfl.data.source import SPLITS, Feature, Rows, Source
from agnosticfl.data.splits import Fractions, check_fractions, split_of
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.registry import LOADERS

Fate: TypeAlias = Callable[[str], str]  # client -> its split


class Columns(NamedTuple):
    """Which column is what."""

    client: str
    domain: str
    features: tuple[str, ...]
    label: str | None
    split: str | None


@LOADERS.add("arrays")
def load(
    sources: Sequence[Path],
    *,
    client: Annotated[str, "column that says whom an example belongs to"],
    domain: Annotated[str, "column with the domain of an example"],
    features: Annotated[str | None, "columns to learn from, with commas; else all others"] = None,
    label: Annotated[str | None, "column to predict: integers or names"] = None,
    split: Annotated[str | None, "column that says train, heldout or test"] = None,
    test_fraction: Annotated[float, "part of the clients, about, kept for the test"] = 0.0,
    heldout_fraction: Annotated[float, "part of the clients, about, to hold out"] = 0.0,
    seed: Annotated[int, "chooses the clients of the fractions"] = 0,
    licence: Annotated[str, "licence of the data, kept in the store"] = "unknown",
) -> Source:
    """Reads Parquet, CSV or .npz files with a client and a domain column."""
    check(len(sources) > 0, "no file was given; a .parquet, .csv, .csv.gz or .npz is needed")
    text = [name for name in (client, domain, label, split) if name is not None]
    tables = [open_table(Path(path), text) for path in sources]
    wanted = None if features is None else features.split(",")
    columns = _columns(tables, client, domain, wanted, label, split)
    name = ", ".join(Path(path).name for path in sources)
    return _source(name, licence, tables, columns, Fractions(heldout_fraction, test_fraction), seed)


def from_frame(
    frame: Any,
    *,
    client: str,
    domain: str,
    features: Sequence[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    test_fraction: float = 0.0,
    heldout_fraction: float = 0.0,
    seed: int = 0,
    name: str = "frame",
    licence: str = "unknown",
) -> Source:
    """The same from a pandas or Polars frame, a `datasets.Dataset`, or a mapping of numpy arrays.

    `write_store(source, path)` makes a store of it, `collect(source)` data sets in memory.
    """
    tables = [frame_table(frame)]
    columns = _columns(tables, client, domain, features, label, split)
    return _source(name, licence, tables, columns, Fractions(heldout_fraction, test_fraction), seed)


def _columns(
    tables: Sequence[Table],
    client: str,
    domain: str,
    features: Sequence[str] | None,
    label: str | None,
    split: str | None,
) -> Columns:
    roles = [name for name in (client, domain, label, split) if name is not None]
    if features is None:
        features = [name for name in tables[0].columns if name not in roles]
    for table in tables:
        for name in (*roles, *features):
            choose(name, table.columns, f"column of {table.place}")
    check(len(features) > 0, f"{tables[0].place} has no column left to learn from")
    return Columns(client, domain, tuple(features), label, split)


def _source(
    name: str,
    licence: str,
    tables: Sequence[Table],
    columns: Columns,
    fractions: Fractions,
    seed: int,
) -> Source:
    check_fractions(fractions)
    check(
        columns.split is None or not any(fractions),
        f"give either the split column {columns.split!r} or fractions, not both",
    )
    domains = _distinct(tables, columns.domain)
    labels = _label_names(tables, columns.label)

    fate = partial(split_of, fractions=fractions, seed=seed)

    def rows() -> Iterator[Rows]:
        return _rows(tables, columns, fate, domains, labels)

    first = next(rows(), None)
    if first is None:
        raise BadInput(f"{name}: there are no examples")
    schema = {
        key: Feature(values.dtype.name, values.shape[1:]) for key, values in first.features.items()
    }
    return Source(name, licence, domains, schema, rows, labels=labels)


def _batches(table: Table, names: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    row = 0
    for batch in table.batches(names):
        yield Place(table.place, row), batch
        row += len(batch)


def _rows(
    tables: Sequence[Table],
    columns: Columns,
    fate: Fate,
    domains: Sequence[str],
    labels: Sequence[str] | None,
) -> Iterator[Rows]:
    names = dict.fromkeys(name for name in (*columns[:2], *columns[3:]) if name is not None)
    for table in tables:
        for place, batch in _batches(table, [*names, *columns.features]):
            client = text_of(place, batch, columns.client)
            domain = pc.index_in(text_of(place, batch, columns.domain), pa.array(domains))
            features = _features(place, batch, columns.features)
            if columns.label is not None:
                check("y" not in features, "a feature is called 'y', which is the label's name")
                features["y"] = _labels(place, batch, columns.label, labels)
            split = _splits(place, batch, columns.split, client, fate)
            yield from _by_split(split, client, domain.to_numpy(), features)


def _by_split(
    split: np.ndarray, client: Any, domain: np.ndarray, features: dict[str, np.ndarray]
) -> Iterator[Rows]:
    for name in np.unique(split).tolist():
        chosen = np.flatnonzero(split == name)
        columns = {key: values[chosen] for key, values in features.items()}
        yield Rows(name, client.take(pa.array(chosen)).to_pylist(), domain[chosen], columns)


def _distinct(tables: Sequence[Table], name: str) -> tuple[str, ...]:
    """The values of a column: integers by size, texts by alphabet."""
    found: set[str] = set()
    for table in tables:
        for place, batch in _batches(table, [name]):
            found.update(pc.unique(text_of(place, batch, name)).to_pylist())
    return tuple(sorted(found, key=int if all(map(_is_integer, found)) else None))


def _is_integer(text: str) -> bool:
    """Whether this is a number that surely fits int32; anything else is a name."""
    return re.fullmatch("-?[0-9]{1,9}", text) is not None


def _label_names(tables: Sequence[Table], label: str | None) -> tuple[str, ...] | None:
    """The names of the labels in the order of their numbers; None if they are numbers already."""
    if label is None:
        return None
    names = _distinct(tables, label)
    return None if all(map(_is_integer, names)) else names


def _labels(place: Place, batch: Any, name: str, labels: Sequence[str] | None) -> np.ndarray:
    text = text_of(place, batch, name)
    if labels is not None:
        return pc.index_in(text, pa.array(labels)).to_numpy()
    return text.cast(pa.int32()).to_numpy()


def _features(place: Place, batch: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    single: list[np.ndarray] = []
    features: dict[str, np.ndarray] = {}
    for name in names:
        values = numbers_of(place, batch, name)
        if values.ndim == 1:
            single.append(values.astype(np.float32))
        else:
            features[name] = values
    if single:
        check(
            "x" not in features,
            f"{place.file}: column 'x' holds lists, but 'x' is to be made of the single numbers"
            " too; choose the features by name",
        )
        features["x"] = np.stack(single, axis=1)
    return features


def _splits(place: Place, batch: Any, name: str | None, client: Any, fate: Fate) -> np.ndarray:
    """The split of each row: from its column, or from the client's fate."""
    if name is None:
        distinct = client.dictionary_encode()
        fates = np.array([fate(text) for text in distinct.dictionary.to_pylist()])
        return fates[distinct.indices.to_numpy()]
    split = text_of(place, batch, name)
    unknown = pc.invert(pc.is_in(split, pa.array(SPLITS))).to_numpy(zero_copy_only=False)
    if unknown.any():
        row = int(unknown.argmax())
        place.refuse(name, row, f"is {split[row].as_py()!r} (allowed: {', '.join(SPLITS)})")
    return split.to_numpy(zero_copy_only=False).astype(str)
