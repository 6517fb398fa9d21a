# SPDX-License-Identifier: Apache-2.0
"""Reads FedJAX's SQLite files: one row a client, its examples as zlib(msgpack(name -> array)).

FedJAX packs arrays as msgpack extensions: 1 is an array (shape, dtype name, bytes in C order), 3 a
scalar in the same form, 4 an array of byte strings (shape, list).
"""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from agnosticfl.data.loaders.limits import MAX_CLIENT_BYTES, reason, short
from agnosticfl.errors import BadInput, check

_ARRAY, _SCALAR, _BYTE_STRINGS = 1, 3, 4
_NUMERIC = (b"bool", b"uint8", b"int32", b"int64", b"float32", b"float64")


def clients(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each client's id and examples, in the order of the file."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    last = "the start"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            _check_size(path, database)
            _check_table(path, database)
            for client_id, blob in database.execute("SELECT client_id, data FROM federated_data"):
                name = _text(path, client_id)
                last = f"client {short(name)}"
                yield name, decode(blob, f"{path}: {last}")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: SQLite quotes damaged text
        raise BadInput(f"{path}: damaged SQLite file, after {last} ({reason(error)})") from error


def decode(blob: Any, place: str) -> dict[str, np.ndarray]:
    """Feature name -> array of one client's `data`; `place` is named when it is malformed."""
    check(isinstance(blob, bytes), f"{place}: data is {type(blob).__name__}; it must be a BLOB")
    try:
        features = msgpack.unpackb(_inflate(blob), ext_hook=_extension, raw=False)
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise BadInput(f"{place}: malformed data ({reason(error)})") from error
    good = isinstance(features, dict) and all(isinstance(v, np.ndarray) for v in features.values())
    check(good, f"{place}: data is not a map of arrays")
    return features


def _check_size(path: Path, database: sqlite3.Connection) -> None:
    """SQLite itself takes what is missing of the last page for zeros."""
    (pages,), (page_size,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    size, needed = path.stat().st_size, pages * page_size
    check(size >= needed, f"{path}: ends at offset {size}; its header says {needed} bytes")


def _check_table(path: Path, database: sqlite3.Connection) -> None:
    columns = {row[1] for row in database.execute("PRAGMA table_info(federated_data)")}
    check(
        {"client_id", "data"} <= columns,
        f"{path}: no table federated_data(client_id, data); this is no SQLite file of FedJAX",
    )


def _text(path: Path, client_id: Any) -> str:
    try:
        return client_id.decode() if isinstance(client_id, bytes) else str(client_id)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: client id {short(client_id)} is no UTF-8 text") from error


def _inflate(blob: bytes) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(blob, MAX_CLIENT_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"it inflates to more than {MAX_CLIENT_BYTES} bytes")
    if not stream.eof:
        raise ValueError("the zlib data is cut off")
    return data


def _extension(code: int, data: bytes) -> np.ndarray:
    # raw: the inner tuples hold dtype names and array contents alike as raw byte strings.
    parts = msgpack.unpackb(data, raw=True)
    if code in (_ARRAY, _SCALAR):
        shape, name, content = parts
        return np.frombuffer(content, _numeric(name)).reshape(_sizes(shape))
    if code == _BYTE_STRINGS:
        shape, strings = parts
        if not all(isinstance(s, bytes) for s in strings):
            raise ValueError("an array of byte strings holds something else")
        array = np.empty(len(strings), object)
        array[:] = strings
        return array.reshape(_sizes(shape))
    raise ValueError(f"unknown msgpack extension {code}")


def _numeric(name: Any) -> str:
    if name not in _NUMERIC:
        raise ValueError(f"{short(name)} is no numeric type")
    return name.decode()


def _sizes(shape: Any) -> list[int]:
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"{short(shape)} is no shape")
    return list(shape)
