# SPDX-License-Identifier: Apache-2.0
"""The split of each row of a table: from a column, by client, or row by row."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import Place, text_of
from agnosticfl.data.in_memory import generator
from agnosticfl.data.preparation.apply import label_values
from agnosticfl.data.preparation.record import Label
from agnosticfl.data.source import SPLITS
from agnosticfl.data.splits import (
    Fractions,
    lenient_shares,
    split_of,
    stratified_splits,
    uniform_hash,
)
from agnosticfl.data.tabular.names import ROW
from agnosticfl.data.tabular.owners import Owners, Piece, main_domains, pieces

# What says the split of each row of a piece, [n] texts. Some count the rows on the way, so every
# pass over the table starts with a new one.
Splitter: TypeAlias = Callable[[Piece], np.ndarray]


class Stratum(NamedTuple):
    """Rows that are alike in what every split should have its share of."""

    domain: int
    label: int  # the class; 0 if the label is a number, or there is none
    client: str


def splitters(owners: Owners, label: Label | None) -> Callable[[], Splitter]:
    """Makes a splitter for each pass over the tables."""
    options = owners.options
    if options.split is not None:
        name = options.split
        return lambda: lambda piece: _column(piece.place, piece.batch, name)
    if not any(options.fractions):
        return lambda: lambda piece: np.full(len(piece.client), "train")
    by_rows = options.split_by == "rows" or options.client == ROW
    if not options.stratify:
        return lambda: _hashed_rows(owners) if by_rows else _by_client(_hashed(owners))
    if not by_rows:
        fate = _client_fates(owners)
        return lambda: _by_client(fate.__getitem__)
    decks = _decks(_row_counts(owners, label), options.fractions, options.seed)
    return lambda: _dealt_rows(owners, decks, label)


def _column(place: Place, batch: Any, name: str) -> np.ndarray:
    split = text_of(place, batch, name)
    unknown = pc.invert(pc.is_in(split, pa.array(SPLITS))).to_numpy(zero_copy_only=False)
    if unknown.any():
        row = int(unknown.argmax())
        place.refuse(name, row, f"is {split[row].as_py()!r} (allowed: {', '.join(SPLITS)})")
    return split.to_numpy(zero_copy_only=False).astype(str)


def _by_client(fate: Callable[[str], str]) -> Splitter:
    def split(piece: Piece) -> np.ndarray:
        known = {client: fate(client) for client in set(piece.client)}
        return np.array([known[client] for client in piece.client])

    return split


def _hashed(owners: Owners) -> Callable[[str], str]:
    options = owners.options
    return lambda client: split_of(client, options.fractions, options.seed)


def _hashed_rows(owners: Owners) -> Splitter:
    fate = _hashed(owners)

    def split(piece: Piece) -> np.ndarray:
        rows = range(piece.place.row, piece.place.row + len(piece.client))
        return np.array([fate(f"{piece.table}:{row}") for row in rows])

    return split


def _client_fates(owners: Owners) -> Mapping[str, str]:
    counts: Counter[tuple[str, int]] = Counter()
    for piece in pieces(owners, []):
        counts.update(zip(piece.client, piece.domain.tolist(), strict=True))
    options = owners.options
    fates = stratified_splits(main_domains(counts), options.fractions, options.seed, strict=False)
    return _all_in_train(fates, counts)


def _all_in_train(fates: dict[str, str], counts: Counter[tuple[str, int]]) -> dict[str, str]:
    """A domain that is nobody's main one may be in no training client: one goes back to train."""
    trained = {domain for client, domain in counts if fates[client] == "train"}
    for client, domain in sorted(counts):
        if domain not in trained:
            fates[client] = "train"
            trained |= {d for c, d in counts if c == client}
    return fates


def _row_counts(owners: Owners, label: Label | None) -> Counter[Stratum]:
    counts: Counter[Stratum] = Counter()
    for piece in pieces(owners, [] if label is None else [label.name]):
        counts.update(_strata(owners, piece, label))
    return counts


def _strata(owners: Owners, piece: Piece, label: Label | None) -> Iterator[Stratum]:
    """The stratum of each row; clients of a single row share that of their domain and class."""
    alone = owners.options.client == ROW
    clients = [""] * len(piece.client) if alone else piece.client
    classes = np.zeros(len(piece.client), int)
    if label is not None and label.classes is not None:
        classes = label_values(label, piece.place, piece.batch)
    return map(Stratum, piece.domain.tolist(), classes.tolist(), clients)


def _decks(
    counts: Mapping[Stratum, int], fractions: Fractions, seed: int
) -> dict[Stratum, np.ndarray]:
    """For each stratum the splits of its rows, in random order.

    The rows of a domain lie in a line, those of a class together and within it those of a client.
    Test and heldout are spread evenly over the line, so that every class and client has its share
    up to one row, however small it is.
    """
    lines: dict[int, list[Stratum]] = {}
    for stratum in sorted(counts, key=lambda s: (*s[:2], uniform_hash(seed, s.client), s.client)):
        lines.setdefault(stratum.domain, []).append(stratum)
    decks: dict[Stratum, np.ndarray] = {}
    for line in lines.values():
        splits, start = _spread(sum(counts[stratum] for stratum in line), fractions), 0
        for stratum in line:
            own = splits[start : start + counts[stratum]]
            start += len(own)
            rng = generator(seed, int(uniform_hash(seed, repr(tuple(stratum))) * 2**53))
            decks[stratum] = rng.permutation(own)
    return decks


def _spread(number: int, fractions: Fractions) -> np.ndarray:
    """The split (its number in SPLITS) of each place in a line."""
    test, heldout = lenient_shares(number, fractions)
    splits = np.zeros(number, np.uint8)
    splits[_evenly(number, test)] = SPLITS.index("test")
    rest = np.flatnonzero(splits == 0)
    splits[rest[_evenly(len(rest), heldout)]] = SPLITS.index("heldout")
    return splits


def _evenly(number: int, chosen: int) -> np.ndarray:
    """`chosen` of `number` places, as far apart as can be."""
    return np.arange(chosen) * number // max(chosen, 1)


def _dealt_rows(
    owners: Owners, decks: Mapping[Stratum, np.ndarray], label: Label | None
) -> Splitter:
    left: dict[Stratum, Iterator[Any]] = {}
    names = np.array(SPLITS)

    def split(piece: Piece) -> np.ndarray:
        dealt: list[int] = []
        for stratum in _strata(owners, piece, label):
            if stratum not in left:
                left[stratum] = iter(decks[stratum])
            dealt.append(next(left[stratum]))
        return names[dealt]

    return split
