# SPDX-License-Identifier: Apache-2.0
"""Rows on their way into a store: put on the disc as they come, and sorted there by client.

A row travels as one record of bytes: domain and features. DuckDB sorts the records, out of core. A
record wider than a page, such as a photo, stays where it is, and a ticket with its place is sorted.
"""

import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agnosticfl.data.arrow import array_over, mapped
from agnosticfl.data.source import Feature, Rows
from agnosticfl.errors import BadInput, require

SORT_MEMORY = "1GB"  # DuckDB spills to disc above this
SORT_THREADS = 4  # each needs its part of the memory
PIECE = 32 << 20  # bytes of records that are held in memory at a time
PAGE = 4096  # bytes; a record up to this is sorted itself
TICKET = np.dtype(np.int64)


def record_type(features: Mapping[str, Feature]) -> np.dtype:
    """Domain and features of a row, next to each other."""
    fields = [(name, feature.dtype, feature.shape) for name, feature in features.items()]
    return np.dtype([("domain", np.int32), ("features", fields)])


class Spool:
    """The rows of one split in a folder of their own."""

    def __init__(self, folder: Path, record: np.dtype):
        folder.mkdir()
        self.folder, self.record, self.rows = folder, record, 0
        self.wide = record.itemsize > PAGE
        self.key = TICKET if self.wide else record  # what is sorted
        width = pa.binary(self.key.itemsize)
        self.schema = pa.schema({"client": pa.string(), "row": pa.int64(), "record": width})
        self.writer = pq.ParquetWriter(folder / "rows", self.schema, use_dictionary=False)
        self.records = (folder / "records").open("wb")
        self.waiting: list[Any] = []  # a file of many small groups would be slow to read
        self.bytes = 0

    def add(self, clients: Any, rows: Rows) -> None:
        """Puts rows after those that are there; `clients` is their Arrow column."""
        number = np.arange(self.rows, self.rows + len(clients))
        keys = _pack(rows, self.record)
        if self.wide:
            self.records.write(keys.tobytes())
            keys = number
        record = array_over(self.schema.field("record").type, len(keys), keys)
        self.waiting.append(pa.record_batch([clients, number, record], schema=self.schema))
        self.rows += len(clients)
        self.bytes += self.waiting[-1].nbytes
        if self.bytes >= PIECE:
            self._flush()

    def _flush(self) -> None:
        self.writer.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting, self.bytes = [], 0

    def close(self) -> None:
        """Ends the adding."""
        self._flush()
        self.writer.close()
        self.records.close()

    def in_order(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Sorts the rows by client, and gives (clients, records) piece by piece.

        The rows of a client stay in the order in which they came.
        """
        _sort(self.folder, self.key.itemsize)
        step = min(max(PIECE // self.record.itemsize, 1), 1 << 16)
        with pq.ParquetFile(self.folder / "sorted") as table:
            for batch in table.iter_batches(step):
                keys = _unpack(batch["record"], self.key)
                yield batch["client"], self._redeem(keys) if self.wide else keys

    def _redeem(self, tickets: np.ndarray) -> np.ndarray:
        """Mapped anew each time: pages of a mapping would stay in memory as long as it does."""
        return np.frombuffer(mapped(self.folder / "records"), self.record)[tickets]


def _pack(rows: Rows, record: np.dtype) -> np.ndarray:
    packed = np.empty(len(rows.domain), record)
    packed["domain"] = rows.domain
    for name, values in rows.features.items():
        packed["features"][name] = values
    return packed


def _unpack(column: Any, key: np.dtype) -> np.ndarray:
    """The keys in a column of bytes, which may be a slice of a longer one."""
    _, ends, content = column.buffers()
    first = np.frombuffer(ends, np.int32)[column.offset]
    return np.frombuffer(content, key, len(column), first)


def _sort(folder: Path, width: int) -> None:
    """Sorts the file `rows` by client, then by row, into the file `sorted`."""
    group = min(PIECE // width, 122_880)  # rows that a reader holds in memory
    config = {
        "memory_limit": SORT_MEMORY,
        "temp_directory": str(folder / "spill"),
        "threads": min(SORT_THREADS, os.cpu_count() or 1),
    }
    copy = (
        "COPY (SELECT client, record"
        f" FROM read_parquet({_quoted(glob.escape(str(folder / 'rows')))}) ORDER BY client, row)"
        f" TO {_quoted(str(folder / 'sorted'))} (FORMAT parquet, ROW_GROUP_SIZE {group})"
    )
    duckdb = require("duckdb", "writing a store")
    try:
        with duckdb.connect(":memory:", config=config) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(copy)
    except duckdb.Error as error:  # as a rule, the disc is full
        raise BadInput(f"{folder} cannot be sorted: {' '.join(str(error).split())}") from None
    (folder / "rows").unlink()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
