# SPDX-License-Identifier: Apache-2.0
"""FedJAX's client files: SQLite with one row a client, the arrays as zlib-packed msgpack."""

import math
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from agnosticfl.data.splits import check_client_id
from agnosticfl.errors import BadInput, check, require

CLIENT_LIMIT = 1 << 29  # bytes of one client, unpacked: a bound on memory
DTYPES = frozenset(
    {b"bool", b"float16", b"float32", b"float64"}
    | {f"{sign}int{bits}".encode() for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
NDARRAY, SCALAR, BYTES_ARRAY = 1, 3, 4  # FedJAX's msgpack extension codes


def open_sqlite(path: Path) -> sqlite3.Connection:
    """Opens an SQLite file for reading only; it is neither locked nor changed."""
    check(path.is_file(), f"{path} does not exist")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def read_clients(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields (client id, feature name -> array [n, ...]) for each client of a FedJAX file."""
    query = "SELECT client_id, data, num_examples FROM federated_data"
    try:
        with closing(open_sqlite(path)) as connection:
            for number, (name, data, size) in enumerate(connection.execute(query), 1):
                place = f"{path}, row {number}"
                yield as_text(name, place), decode_client(data, size, place)
    except sqlite3.Error as error:
        raise BadInput(f"{path} is no FedJAX file or is damaged: {error}") from error


def as_text(name: Any, place: str) -> str:
    """A client id, stored as text or as UTF-8 bytes."""
    try:
        text = name.decode() if isinstance(name, bytes) else name
    except UnicodeDecodeError as error:
        raise BadInput(f"{place}: the client id is not UTF-8 at byte {error.start}") from error
    check(isinstance(text, str), f"{place}: the client id is {name!r}; it must be text or bytes")
    return check_client_id(text, place)


def decode_client(data: Any, size: Any, place: str) -> dict[str, np.ndarray]:
    """One client's arrays from their packed form; `size` is the number of examples they have."""
    check(isinstance(data, bytes), f"{place}: the data is a {type(data).__name__}, not bytes")
    msgpack = require("msgpack", "reading FedJAX files")
    try:
        arrays = msgpack.unpackb(_inflate(data, place), ext_hook=_extension, strict_map_key=True)
    except BadInput:
        raise
    # msgpack's exceptions are ValueErrors but for two; numpy adds TypeError for a wrong dtype.
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise BadInput(f"{place}: the data is not FedJAX's msgpack: {error}") from error
    good = isinstance(arrays, dict) and all(
        isinstance(name, str) and isinstance(array, np.ndarray) and array.shape[:1] == (size,)
        for name, array in arrays.items()
    )
    check(good, f"{place}: the data is not a map of names to arrays of {size} examples")
    return arrays


def _inflate(data: bytes, place: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(data, CLIENT_LIMIT)
    except zlib.error as error:
        raise BadInput(f"{place}: the data is not zlib: {error}") from error
    check(not unpacker.unconsumed_tail, f"{place}: the data unpacks to over {CLIENT_LIMIT} bytes")
    check(unpacker.eof, f"{place}: the data is cut short")
    return raw


def _extension(code: int, data: bytes) -> Any:
    unpack = require("msgpack", "reading FedJAX files").unpackb
    parts = unpack(data, raw=True, use_list=False)
    if code in (NDARRAY, SCALAR) and len(parts) == 3:
        array = _array(*parts)
        return array[()] if code == SCALAR else array
    if code == BYTES_ARRAY and len(parts) == 2:
        return _bytes_array(*parts)
    raise ValueError(f"unknown extension {code} with {len(parts)} parts")


def _array(shape: Any, dtype: bytes, buffer: bytes) -> np.ndarray:
    if dtype not in DTYPES:
        raise ValueError(f"an array of type {dtype!r}; only numbers are allowed")
    return np.frombuffer(buffer, dtype.decode()).reshape(_shape(shape))


def _bytes_array(shape: Any, values: Any) -> np.ndarray:
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError("a bytes array holds something else")
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(_shape(shape))


def _shape(shape: Any) -> tuple[int, ...]:
    good = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not good or math.prod(shape) > CLIENT_LIMIT:
        raise ValueError(f"{str(shape)[:60]} is no shape")
    return shape
