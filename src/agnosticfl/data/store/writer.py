# SPDX-License-Identifier: Apache-2.0
"""Writes a store from a source in bounded memory.

The rows are checked and spooled to disc as they come, sorted there by client, and cut into columns.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from agnosticfl.data.preparation.record import FILE as PREPARATION
from agnosticfl.data.preparation.record import to_json
from agnosticfl.data.source import SPLITS, Source
from agnosticfl.data.store.columns import write_split
from agnosticfl.data.store.reader import (
    FORMAT,
    META,
    VOCABULARY,
    Counts,
    FileInfo,
    Meta,
    file_info,
    write_meta,
)
from agnosticfl.data.store.rows import check_rows, check_source, check_totals
from agnosticfl.data.store.spool import Spool, record_type
from agnosticfl.data.store.staging import LOCK, staging
from agnosticfl.errors import check, require

# What is going on, how much of it is done, and of how much (None if unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]


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
    with staging(Path(out), partial(check_target, overwrite=overwrite)) as stage:
        splits: dict[str, Counts] = {}
        for split, spool in _spool(source, stage, progress).items():
            progress(f"sorting {split}", 0, None)
            report = partial(progress, f"writing {split}")
            splits[split] = write_split(spool, stage / split, source.features, report)
        if source.vocabulary is not None:
            words = json.dumps(source.vocabulary, ensure_ascii=False)
            (stage / VOCABULARY).write_text(words, encoding="utf-8")
        if source.preparation is not None:
            steps = json.dumps(to_json(source.preparation), indent=1, ensure_ascii=False)
            (stage / PREPARATION).write_text(steps, encoding="utf-8")
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


def _spool(source: Source, stage: Path, progress: Progress) -> dict[str, Spool]:
    """Puts the rows of each split on the disc; every row is checked on the way."""
    record = record_type(source.features)
    spools: dict[str, Spool] = {}
    domain_counts: dict[str, np.ndarray] = {}
    done = 0
    with contextlib.ExitStack() as stack:
        for rows in source.rows():
            clients = check_rows(source, rows, done)
            if len(clients) == 0:
                continue
            if rows.split not in spools:
                spools[rows.split] = Spool(stage / f"{rows.split}.spool", record)
                stack.callback(spools[rows.split].close)
            spools[rows.split].add(clients, rows)
            counts = np.bincount(rows.domain, minlength=len(source.domains))
            domain_counts[rows.split] = domain_counts.get(rows.split, 0) + counts
            done += len(clients)
            progress("reading", done, source.total)
    check_totals(source, domain_counts)
    return {split: spools[split] for split in SPLITS if split in spools}


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
        notes=source.notes,
        given=source.given,
    )
