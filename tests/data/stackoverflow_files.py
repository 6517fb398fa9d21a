# SPDX-License-Identifier: Apache-2.0
"""Files of Stack Overflow's three formats, with a few sentences."""

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np

FEDJAX_TABLE = "federated_data(client_id BLOB, data BLOB, num_examples INTEGER)"

# client -> (tokens, type) of each sentence
Posts = dict[str, Sequence[tuple[bytes, bytes]]]
POSTS: Posts = {
    "10": [(b"how do i sort a list ?", b"question"), (b"use sorted", b"answer")],
    "20": [("así es ñandú".encode(), b"answer"), (b"", b"answer"), (b"yes", b"answer")],
}


def bytes_array(values: Sequence[bytes]) -> msgpack.ExtType:
    return msgpack.ExtType(4, msgpack.packb([[len(values)], list(values)]))


def ndarray(array: np.ndarray, code: int = 1) -> msgpack.ExtType:
    return msgpack.ExtType(
        code, msgpack.packb([list(array.shape), array.dtype.name, array.tobytes()])
    )


def packed(content: Any) -> bytes:
    return zlib.compress(msgpack.packb(content) or b"")


def write_fedjax(path: Path, posts: Posts = POSTS) -> Path:
    rows = [
        (
            client.encode(),
            packed(
                {
                    "tokens": bytes_array([tokens for tokens, _ in own]),
                    "type": bytes_array([kind for _, kind in own]),
                    "score": ndarray(np.arange(len(own), dtype=np.int64)),
                }
            ),
            len(own),
        )
        for client, own in posts.items()
    ]
    return write_table(path, FEDJAX_TABLE, rows)


def write_table(path: Path, table: str, rows: Sequence[tuple[Any, ...]]) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table}")
        marks = ",".join("?" * (table.count(",") + 1))
        connection.executemany(f"INSERT INTO {table.split('(')[0]} VALUES ({marks})", rows)
        connection.commit()
    return path


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field, for lengths below 128."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def example(tokens: bytes, kind: bytes) -> bytes:
    """A tf.train.Example, byte for byte as the protobuf wire format has it."""
    score = field(1, b"score") + field(2, field(3, field(1, b"\x05")))  # Feature.int64_list
    entries = [score] + [
        field(1, name) + field(2, field(1, field(1, value)))  # Feature.bytes_list.value
        for name, value in ((b"tokens", tokens), (b"type", kind))
    ]
    return field(1, b"".join(field(1, entry) for entry in entries))


def write_tff_sqlite(path: Path, posts: Posts = POSTS, split: str = "train") -> Path:
    rows = [(split, client, example(*post)) for client, own in posts.items() for post in own]
    return write_table(
        path, "examples(split_name TEXT, client_id TEXT, serialized_example_proto BLOB)", rows
    )


def write_hdf5(path: Path, posts: Posts = POSTS) -> Path:
    with h5py.File(path, "w") as file:
        for client, own in posts.items():
            group = file.create_group(f"examples/{client}")
            for name, column in zip(("tokens", "type"), zip(*own, strict=True), strict=True):
                group.create_dataset(name, data=list(column), dtype=h5py.string_dtype())
    return path
