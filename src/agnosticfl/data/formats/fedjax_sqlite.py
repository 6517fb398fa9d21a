# SPDX-License-Identifier: Apache-2.0
"""Reads FedJAX's SQLite files: one row per client, its examples as zlib(msgpack(name -> array)).

FedJAX packs arrays as msgpack extensions: 1 is an array (shape, dtype name, bytes in C order), 3 a
scalar in the same form, 4 an array of byte strings (shape, list).
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from agnosticfl.data.formats.limits import MAX_CLIENT_BYTES, reason, short
from agnosticfl.data.formats.sqlite import client_text, open_sqlite, tables
from agnosticfl.errors import BadInput, check

TABLE = "federated_data"
_ARRAY, _SCALAR, _BYTE_STRINGS = 1, 3, 4
_NUMERIC = (b"bool", b"uint8", b"int32", b"int64", b"float32", b"float64")


def clients(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each client's id and examples, in the order of the file."""
    check(TABLE in tables(path), f"{path}: no table {TABLE}; this is no SQLite file of FedJAX")
    with open_sqlite(path) as database:
        query = f"SELECT client_id, data, num_examples FROM {TABLE}"
        for number, (client_id, blob, size) in enumerate(database.execute(query), 1):
            name = client_text(client_id, f"{path}: row {number}")
            yield name, decode(blob, size, f"{path}: client {short(name)}")


def decode(blob: Any, size: Any, place: str) -> dict[str, np.ndarray]:
    """Feature name -> array [size, ...] of one client; `place` is named when it is malformed."""
    check(isinstance(blob, bytes), f"{place}: data is {type(blob).__name__}; it must be a BLOB")
    try:
        features = msgpack.unpackb(_inflate(blob), ext_hook=_extension, raw=False)
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise BadInput(f"{place}: malformed data ({reason(error)})") from error
    good = isinstance(features, dict) and all(
        isinstance(name, str) and isinstance(values, np.ndarray) and values.shape[:1] == (size,)
        for name, values in features.items()
    )
    check(good, f"{place}: data is not a map of names to arrays of {size} examples")
    return features


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
