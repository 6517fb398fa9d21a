# SPDX-License-Identifier: Apache-2.0
"""Writes a store from a source in bounded memory.

The rows are spooled to disc as they come, DuckDB sorts them by client (out of core), and the
sorted stream is cut into columns. Each row travels as one record of bytes: domain and features.
"""

import contextlib
import glob
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agnosticfl.data.arrow import array_over
from agnosticfl.data.columns import write_split
from agnosticfl.data.rows import check_rows, check_source, check_totals
from agnosticfl.data.source import SPLITS, Feature, Rows, Source
from agnosticfl.data.staging import LOCK, staging
from agnosticfl.data.store import (
    FORMAT,
    META,
    VOCABULARY,
    Counts,
    FileInfo,
    Meta,
    file_info,
    write_meta,
)
from agnosticfl.errors import check, require

# What is going on, how much of it is done, and of how much (None if unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]

SORT_MEMORY = "1GB"  # DuckDB spills to disc above this
SPOOL_BYTES = 32 << 20  # rows that wait in memory before they go to disc


def write_store(
    source: Source,
    out: Path | str,
    progress: Progress = lambda *_: None,
    overwrite: bool = False,
) -> None:
    """Writes `source` to the new store `out`, whole or not at all.

    Raises `BadInput` for rows that do not fit the source's own schema, and if `out` exists; with
    `overwrite`, an `out` that is a store is replaced.
    """
    require("duckdb", "writing a store")
    check_source(source)
    record = _record_type(source.features)
    with staging(Path(out), partial(check_target, overwrite=overwrite)) as stage:
        splits: dict[str, Counts] = {}
        for split, spooled in _spool(source, record, stage, progress).items():
            progress(f"sorting {split}", 0, None)
            ordered = _sort(spooled, record.itemsize)
            report = partial(progress, f"writing {split}")
            splits[split] = write_split(ordered, stage / split, source.features, record, report)
        if source.vocabulary is not None:
            words = json.dumps(source.vocabulary, ensure_ascii=False)
            (stage / VOCABULARY).write_text(words, encoding="utf-8")
        write_meta(stage, _meta(source, splits, _file_infos(stage, progress)))


def check_target(out: Path, overwrite: bool) -> None:
    """Refuses a place that is taken; a store may be overwritten, anything else never."""
    check(not out.exists() or overwrite, f"{out} exists; --overwrite replaces a store")
    check(not out.exists() or _is_store(out), f"{out} exists and is no store, so it stays")


def _is_store(path: Path) -> bool:
    """Whether this is a store, of whatever version: nothing else may be replaced."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((path / META).read_text(encoding="utf-8")).get("format") == FORMAT
    return False


def _record_type(features: Mapping[str, Feature]) -> np.dtype:
    fields = [(name, feature.dtype, feature.shape) for name, feature in features.items()]
    return np.dtype([("domain", np.int32), ("features", fields)])


# Step 1: rows to disc, in the order in which they come.


class _Spool:
    """A Parquet file of rows, written in groups big enough to be read fast."""

    def __init__(self, file: Path, width: int):
        types = {"client": pa.string(), "row": pa.int64(), "record": pa.binary(width)}
        self.file, self.schema = file, pa.schema(types)
        self.writer = pq.ParquetWriter(file, self.schema, use_dictionary=False)
        self.waiting: list[Any] = []
        self.bytes = 0

    def add(self, columns: list[Any]) -> None:
        batch = pa.record_batch(columns, schema=self.schema)
        self.waiting.append(batch)
        self.bytes += batch.nbytes
        if self.bytes >= SPOOL_BYTES:
            self.flush()

    def flush(self) -> None:
        self.writer.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting, self.bytes = [], 0

    def close(self) -> None:
        self.flush()
        self.writer.close()


def _spool(source: Source, record: np.dtype, stage: Path, progress: Progress) -> dict[str, Path]:
    """Writes one file a split; every row is checked on the way."""
    spools: dict[str, _Spool] = {}
    domain_counts: dict[str, np.ndarray] = {}
    done = 0
    with contextlib.ExitStack() as stack:
        for rows in source.rows():
            clients = check_rows(source, rows, done)
            if len(clients) == 0:
                continue
            if rows.split not in spools:
                spools[rows.split] = _Spool(stage / f"{rows.split}.parquet", record.itemsize)
                stack.callback(spools[rows.split].close)
            number = np.arange(done, done + len(clients))
            spools[rows.split].add([clients, pa.array(number), _pack(rows, record)])
            counts = np.bincount(rows.domain, minlength=len(source.domains))
            domain_counts[rows.split] = domain_counts.get(rows.split, 0) + counts
            done += len(clients)
            progress("reading", done, source.total)
    check_totals(source, domain_counts)
    return {split: spools[split].file for split in SPLITS if split in spools}


def _pack(rows: Rows, record: np.dtype) -> Any:
    """Domain and features of each row as bytes next to each other."""
    packed = np.empty(len(rows.domain), record)
    packed["domain"] = rows.domain
    for name, values in rows.features.items():
        packed["features"][name] = values
    return array_over(pa.binary(record.itemsize), len(packed), packed)


# Step 2: the rows of a client next to each other, in the order in which they came.


def _sort(spooled: Path, width: int) -> Path:
    """Sorts by client, then by row, and removes the unsorted file."""
    ordered = spooled.with_suffix(".sorted")
    # A group is what reading the sorted file holds in memory at a time.
    group = min(max(SPOOL_BYTES // width, 2048), 122_880)
    config = {"memory_limit": SORT_MEMORY, "temp_directory": str(spooled.with_suffix(".spill"))}
    with require("duckdb", "writing a store").connect(":memory:", config=config) as duck:
        duck.execute("SET enable_progress_bar = false")
        duck.execute(
            "COPY (SELECT client, record"
            f" FROM read_parquet({_quoted(glob.escape(str(spooled)))}) ORDER BY client, row)"
            f" TO {_quoted(str(ordered))} (FORMAT parquet, ROW_GROUP_SIZE {group})"
        )
    spooled.unlink()
    return ordered


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# Step 3 is `columns.write_split`. Step 4: what is in the directory.


def _file_infos(stage: Path, progress: Progress) -> dict[str, FileInfo]:
    files = sorted(file for file in stage.rglob("*") if file.is_file() and file.name != LOCK)
    infos: dict[str, FileInfo] = {}
    for number, file in enumerate(files):
        progress("checksums", number, len(files))
        infos[file.relative_to(stage).as_posix()] = file_info(file)
    progress("checksums", len(files), len(files))
    return infos


def _meta(source: Source, splits: Mapping[str, Counts], files: Mapping[str, FileInfo]) -> Meta:
    return Meta(
        name=source.name,
        licence=source.licence,
        domains=source.domains,
        features=source.features,
        labels=source.labels,
        left_out=dict(source.left_out),  # complete only now: it fills while rows() runs
        splits=splits,
        files=files,
    )
