# SPDX-License-Identifier: Apache-2.0
"""Whose each row is and of which domain, while a table is read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import Place, text_of
from agnosticfl.data.formats.tables import Table, batches_of
from agnosticfl.data.in_memory import generator
from agnosticfl.data.splits import uniform_hash
from agnosticfl.data.tabular.names import FILE, ROW, file_names
from agnosticfl.data.tabular.options import Options


class Owners(NamedTuple):
    """Tables, and where client and domain of their rows come from."""

    tables: Sequence[Table]
    files: Sequence[str]  # the name of each table's file
    options: Options
    domains: Mapping[str, int] = {}  # domain -> rows; known after the first pass


class Piece(NamedTuple):
    """Some rows with their clients and domains."""

    table: int  # the number of the table
    place: Place
    batch: Any
    client: Sequence[str]
    domain: np.ndarray  # [n] int32


def owners_of(tables: Sequence[Table], options: Options) -> Owners:
    """The same before the first pass."""
    paths = [table.path for table in tables if table.path is not None]
    return Owners(tables, file_names(paths) if paths else ["rows"], options)


def pieces(owners: Owners, names: Sequence[str]) -> Iterator[Piece]:
    """All rows with their owners, and the columns in `names`."""
    dealer = _Dealer(owners)
    domains = pa.array(list(owners.domains), pa.string())
    for number, table in enumerate(owners.tables):
        for place, batch in batches_of(table, columns_to_read(owners, names)):
            domain = domain_texts(owners, number, place, batch)
            index = pc.index_in(domain, domains).to_numpy()
            yield Piece(number, place, batch, dealer.clients(number, place, batch, domain), index)


def columns_to_read(owners: Owners, names: Sequence[str]) -> list[str]:
    """Columns `names`, and those of client and domain; one at least, to see the rows at all."""
    options = owners.options
    roles = [n for n in (options.client, options.domain) if n not in (None, FILE, ROW)]
    return list(dict.fromkeys([*map(str, roles), *names])) or [owners.tables[0].columns[0]]


def domain_texts(owners: Owners, table: int, place: Place, batch: Any) -> Any:
    """The domain of each row, as an Arrow column."""
    if owners.options.domain == FILE:
        return pa.array([owners.files[table]] * len(batch), pa.string())
    return text_of(place, batch, owners.options.domain)


class _Dealer:
    """The clients of rows; those that are dealt come from a deck for each domain."""

    def __init__(self, owners: Owners):
        self.owners, self.options = owners, owners.options
        self.decks: dict[str, Iterator[str]] = {}

    def clients(self, table: int, place: Place, batch: Any, domain: Any) -> Sequence[str]:
        client = self.options.client
        if client is None:
            return [next(self._deck(name)) for name in domain.to_pylist()]
        if client == FILE:
            return [self.owners.files[table]] * len(batch)
        if client == ROW:
            several = len(self.owners.tables) > 1
            start = f"{self.owners.files[table]}:" if several else ""
            return [f"{start}{row}" for row in range(place.row, place.row + len(batch))]
        return text_of(place, batch, client).to_pylist()

    def _deck(self, domain: str) -> Iterator[str]:
        if domain not in self.decks:
            size = self.options.rows_per_client or 1
            number = max(1, round(self.owners.domains[domain] / size))
            self.decks[domain] = _deal(domain, number, self.options.seed)
        return self.decks[domain]


def _deal(domain: str, clients: int, seed: int) -> Iterator[str]:
    """Clients of a domain in random order, again and again: their sizes differ by one at most."""
    rng = generator(seed, int(uniform_hash(seed, domain) * 2**53))
    width = len(str(clients - 1))
    while True:
        yield from (f"{domain}-{k:0{width}d}" for k in rng.permutation(clients).tolist())


def main_domains(counts: Counter[tuple[str, int]]) -> dict[str, str]:
    """Client -> the domain of most of its rows (the first of equals), as a stratum."""
    best: dict[str, tuple[int, int]] = {}
    for (client, domain), number in counts.items():
        best[client] = max(best.get(client, (0, 0)), (number, -domain))
    return {client: str(-domain) for client, (_, domain) in best.items()}
