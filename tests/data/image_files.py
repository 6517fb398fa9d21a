# SPDX-License-Identifier: Apache-2.0
"""Small real files in the formats of the image loaders, and a look at what a loader makes of them.

The images are a bright bar on black, as wide as the label says, so every example tells its label.
"""

import gzip
import json
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import msgpack
import numpy as np

from agnosticfl.data.source import SPLITS, Source

IDX_CODES = {"uint8": 0x08, "int32": 0x0C}
# Writers of the tiny EMNIST and the labels they wrote; 2100 and 2599 are the edges of high school.
WRITERS = {"f2099_01": [3, 61], "f2100_92": [0, 10, 36], "f2599_00": [5], "f2600_10": [1, 2]}


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, IDX_CODES[array.dtype.name], array.ndim])
    dims = struct.pack(f">{array.ndim}I", *array.shape)
    return head + dims + array.astype(array.dtype.newbyteorder(">")).tobytes()


def bars(labels: Sequence[int]) -> np.ndarray:
    """[n, 28, 28] uint8: image j has its first 1 + labels[j] inner pixels at 255."""
    images = np.zeros((len(labels), 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        inner = np.zeros(26 * 26, np.uint8)
        inner[: 1 + label] = 255
        image[1:-1, 1:-1] = inner.reshape(26, 26)
    return images


def write_images(folder: Path, part: str, labels: Sequence[int]) -> None:
    """The images gzipped, the labels plain: both occur."""
    images = gzip.compress(idx_bytes(bars(labels)), mtime=0)
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(images)
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.array(labels, np.uint8)))


def write_qmnist(folder: Path, split: str, rows: Sequence[tuple[int, int, int]]) -> None:
    """Rows of (class, HSF series, writer)."""
    table = np.zeros((len(rows), 8), np.int32)
    table[:, :3] = rows
    path = folder / f"qmnist-{split}-labels-idx2-int.gz"
    path.write_bytes(gzip.compress(idx_bytes(table), mtime=0))


# (class, series, writer): 4 student and 2 employee writers train, one of each test.
TRAIN_ROWS = [(k % 10, 4, 2100 + k % 4) for k in range(8)] + [(k, k % 2, k % 2) for k in range(4)]
TEST_ROWS = [(7, 4, 2400), (7, 4, 2400), (1, 3, 500)]


def mnist_folder(folder: Path) -> Path:
    write_images(folder, "train", [row[0] for row in TRAIN_ROWS])
    write_images(folder, "t10k", [row[0] for row in TEST_ROWS])
    write_qmnist(folder, "train", TRAIN_ROWS)
    write_qmnist(folder, "test", [*TEST_ROWS, (9, 4, 2401)])  # one row more than MNIST's images
    return folder


def fashion_folder(folder: Path) -> Path:
    write_images(folder, "train", [0, 1, 2, 3, 6, 6, 2, 0])
    write_images(folder, "t10k", [9, 6, 2, 0])
    return folder


def white_paper(labels: Sequence[int]) -> np.ndarray:
    """The same bars as EMNIST's files have them: [n, 28, 28] float32, black on 1.0."""
    return (1 - bars(labels) / 255).astype(np.float32)


def pack(features: Mapping[str, np.ndarray]) -> bytes:
    """A client's data in FedJAX's form."""

    def extension(array: Any) -> msgpack.ExtType:
        if array.dtype == object:
            return msgpack.ExtType(4, msgpack.packb((array.shape, array.ravel().tolist())))
        inner = (array.shape, array.dtype.name, array.tobytes())
        return msgpack.ExtType(1, msgpack.packb(inner))

    packed: Any = msgpack.packb(dict(features), default=extension)
    return zlib.compress(packed)


def write_clients(path: Path, clients: Mapping[str, Mapping[str, np.ndarray]]) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY,"
            " data BLOB NOT NULL, num_examples INTEGER NOT NULL)"
        )
        rows = [(name.encode(), pack(own), len(own["label"])) for name, own in clients.items()]
        database.executemany("INSERT INTO federated_data VALUES (?, ?, ?)", rows)
    return path


def write_sqlite(path: Path, writers: Mapping[str, Sequence[int]] = WRITERS) -> Path:
    clients = {
        f"{k:016x}:{writer}": {
            "pixels": white_paper(labels),
            "label": np.array(labels, np.int32),
        }
        for k, (writer, labels) in enumerate(writers.items())
    }
    return write_clients(path, clients)


def write_hdf5(path: Path, writers: Mapping[str, Sequence[int]] = WRITERS) -> Path:
    with h5py.File(path, "w") as file:
        for writer, labels in writers.items():
            group = file.create_group(f"examples/{writer}")
            group["pixels"] = white_paper(labels)
            group["label"] = np.array(labels, np.int32)
    return path


def write_leaf(path: Path, writers: Mapping[str, Sequence[int]] = WRITERS) -> Path:
    data = {
        writer: {"x": white_paper(labels).reshape(-1, 784).tolist(), "y": list(labels)}
        for writer, labels in writers.items()
    }
    sizes = [len(labels) for labels in writers.values()]
    path.write_text(json.dumps({"users": list(data), "num_samples": sizes, "user_data": data}))
    return path


class Examples(NamedTuple):
    """All examples of one split."""

    clients: list[str]
    domain: list[str]  # names
    features: dict[str, np.ndarray]


def collect(source: Source) -> dict[str, Examples]:
    """Everything a source gives, by split; checks each piece against what the source declares."""
    pieces: dict[str, list[Any]] = {}
    for rows in source.rows():
        n = len(rows.clients)
        assert rows.split in SPLITS
        assert 0 < n <= 4096
        assert rows.domain.shape == (n,)
        assert rows.domain.dtype == np.int32
        found = {name: (a.dtype.name, a.shape) for name, a in rows.features.items()}
        assert found == {name: (f.dtype, (n, *f.shape)) for name, f in source.features.items()}
        pieces.setdefault(rows.split, []).append(rows)
    return {split: _join(source, rows) for split, rows in pieces.items()}


def _join(source: Source, pieces: list[Any]) -> Examples:
    return Examples(
        clients=[client for rows in pieces for client in rows.clients],
        domain=[source.domains[i] for rows in pieces for i in rows.domain.tolist()],
        features={
            name: np.concatenate([rows.features[name] for rows in pieces])
            for name in source.features
        },
    )
