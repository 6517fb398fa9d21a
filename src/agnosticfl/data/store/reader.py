# SPDX-License-Identifier: Apache-2.0
"""The store: one directory of memory-mapped Arrow files that opens at once, whatever its size.

    meta.json              names, schema, counts, licence, size and SHA-256 of every other file
    vocabulary.json        text only: the word of each token id
    preparation.json       raw tables only: how a row becomes features
    <split>/examples.arrow one column per feature, one row per example, a client's rows adjacent
    <split>/domain.arrow   the domain of each example
    <split>/offsets.arrow  client k holds the rows offsets[k] … offsets[k+1]−1
    <split>/clients.arrow  the id of each client, in the order of their UTF-8 bytes

Every file holds a single record batch, so that a column is one array without a copy.
"""

import hashlib
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from agnosticfl.core.federated import FederatedData
from agnosticfl.data.arrow import arrow_type, mapped
from agnosticfl.data.preparation.record import FILE as PREPARATION
from agnosticfl.data.preparation.record import Preparation, read_preparation
from agnosticfl.data.source import SPLITS, Feature
from agnosticfl.errors import BadInput, check

FORMAT = "agnosticfl-store"
VERSION = 1
META = "meta.json"
VOCABULARY = "vocabulary.json"
INT32, INT64 = Feature("int32", ()), Feature("int64", ())


class FileInfo(NamedTuple):
    """What meta.json says of a file."""

    bytes: int
    sha256: str


class Counts(NamedTuple):
    """What meta.json says of a split."""

    clients: int
    examples: int


class Meta(NamedTuple):
    """The content of meta.json."""

    name: str
    licence: str
    domains: tuple[str, ...]
    features: Mapping[str, Feature]
    labels: tuple[str, ...] | None
    left_out: Mapping[str, int]
    splits: Mapping[str, Counts]
    files: Mapping[str, FileInfo]  # path relative to the store -> size and checksum
    notes: tuple[str, ...] = ()  # what a person should know before trusting the data
    given: tuple[str, ...] = ()  # of vocabulary and preparation: not learnt from training rows


class Store(NamedTuple):
    """An open store; its arrays are views of the mapped files."""

    path: Path
    meta: Meta
    splits: Mapping[str, FederatedData]
    maps: Mapping[str, mmap.mmap]  # the mapped memory that the arrays of `splits` lie in

    def release(self) -> None:
        """Gives the pages read so far back, so that a long run does not come to hold them all.

        They stay in the system's cache as long as it has room, and the arrays stay valid.
        """
        for memory in self.maps.values():
            memory.madvise(mmap.MADV_DONTNEED)

    @property
    def digest(self) -> str:
        """What tells this store from any other, from the checksums of its files."""
        known = [(name, info.sha256) for name, info in sorted(self.meta.files.items())]
        return hashlib.sha256(repr((known, self.meta.domains)).encode()).hexdigest()

    def vocabulary(self) -> tuple[str, ...] | None:
        """The word of each token id, or None if the data is no text."""
        if VOCABULARY not in self.meta.files:
            return None
        return tuple(json.loads((self.path / VOCABULARY).read_text(encoding="utf-8")))

    def preparation(self) -> Preparation | None:
        """How a row of the raw table became features, or None if the store was made otherwise."""
        if PREPARATION not in self.meta.files:
            return None
        return read_preparation(self.path / PREPARATION)


class ClientIds(Sequence[str]):
    """The ids of a split, decoded one by one when asked for."""

    def __init__(self, column: Any):
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "ClientIds": ...
    def __getitem__(self, index: int | slice) -> "str | ClientIds":
        if isinstance(index, slice):
            return ClientIds(self.column[index])
        return self.column[int(index)].as_py()  # int: pyarrow takes no numpy integer


def open_store(path: Path | str) -> Store:
    """Opens a store. The cost does not depend on how many clients it has.

    Sizes of files, schema and row counts are compared with meta.json, so a truncated file is
    noticed here; changed bytes are noticed by `check_store` only.
    """
    path = Path(path)
    meta = read_meta(path)
    for name, info in meta.files.items():
        _check_size(path / name, info.bytes)
    maps = {name: mapped(path / name) for name in meta.files if name.endswith(".arrow")}
    splits = {split: _open_split(path, meta, maps, split) for split in meta.splits}
    return Store(path, meta, splits, maps)


def read_meta(path: Path) -> Meta:
    """Reads and checks meta.json."""
    file = path / META
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{path} is no store: there is no file {META} in it") from None
    except (ValueError, OSError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    check(isinstance(raw, dict) and raw.get("format") == FORMAT, f"{file} is not of a store")
    version = raw.get("version")
    check(
        version == VERSION,
        f"{path} is a store of format version {version}, but this program reads version {VERSION};"
        " prepare it again or update agnosticfl",
    )
    try:
        return _meta(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{file} is damaged: {type(error).__name__} {error}") from None


def write_meta(path: Path, meta: Meta) -> None:
    """Writes meta.json: the last act of a build, since without it nothing opens."""
    raw: dict[str, Any] = {"format": FORMAT, "version": VERSION, **meta._asdict()}
    for name in ("features", "splits", "files"):
        raw[name] = {key: value._asdict() for key, value in raw[name].items()}
    (path / META).write_text(json.dumps(raw, indent=1, ensure_ascii=False), encoding="utf-8")


def file_info(file: Path) -> FileInfo:
    """Size and checksum of a file as it is now."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return FileInfo(file.stat().st_size, digest)


def _meta(raw: dict[str, Any]) -> Meta:
    splits = {name: Counts(**counts) for name, counts in raw["splits"].items()}
    if not splits.keys() <= set(SPLITS):
        raise ValueError(f"unknown split in {sorted(splits)}")
    return Meta(
        name=raw["name"],
        licence=raw["licence"],
        domains=tuple(raw["domains"]),
        features={
            name: Feature(np.dtype(feature["dtype"]).name, tuple(map(int, feature["shape"])))
            for name, feature in raw["features"].items()
        },
        labels=None if raw["labels"] is None else tuple(raw["labels"]),
        left_out=dict(raw["left_out"]),
        splits=splits,
        files={name: FileInfo(**info) for name, info in raw["files"].items()},
        notes=tuple(raw.get("notes", ())),  # older stores have none
        given=tuple(raw.get("given", ())),  # older stores do not say
    )


def _check_size(file: Path, expected: int) -> None:
    check(file.is_file(), f"{file} is missing from the store")
    size = file.stat().st_size
    check(size == expected, f"{file} has {size} bytes instead of {expected}: the store is damaged")


def _open_split(path: Path, meta: Meta, maps: Mapping[str, mmap.mmap], split: str) -> FederatedData:
    clients, rows = meta.splits[split]

    def read(name: str, length: int, schema: Mapping[str, Any]) -> dict[str, Any]:
        file = f"{split}/{name}.arrow"
        check(file in maps, f"{path / META} is damaged: {file} is not listed")
        return _columns(path / file, maps[file], schema, length)

    examples = read("examples", rows, {key: arrow_type(f) for key, f in meta.features.items()})
    return FederatedData(
        examples={name: _view(examples[name], feature) for name, feature in meta.features.items()},
        domain=_view(read("domain", rows, {"domain": pa.int32()})["domain"], INT32),
        offsets=_view(read("offsets", clients + 1, {"offset": pa.int64()})["offset"], INT64),
        client_ids=ClientIds(read("clients", clients, {"id": pa.large_string()})["id"]),
        domains=meta.domains,
    )


def _columns(file: Path, memory: mmap.mmap, schema: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The columns of an Arrow file, without a copy."""
    try:
        reader = pyarrow.ipc.open_file(pa.py_buffer(memory))
        batch = reader.get_batch(0)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{file} is no Arrow file: {' '.join(str(error).split())}") from None
    found = dict(zip(batch.schema.names, batch.schema.types, strict=True))
    check(
        found == schema and reader.num_record_batches == 1 and len(batch) == rows,
        f"{file} does not fit {META}: it has {len(batch)} rows of {found}"
        f" instead of {rows} of {dict(schema)}",
    )
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _view(column: Any, feature: Feature) -> np.ndarray:
    """A column as numpy sees it. (`to_numpy` would import pandas, a quarter of a second.)"""
    shape = (len(column), *feature.shape)
    values = np.frombuffer(column.buffers()[-1], feature.dtype, math.prod(shape))
    return values.reshape(shape)
