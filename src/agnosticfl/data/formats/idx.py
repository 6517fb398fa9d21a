# SPDX-License-Identifier: Apache-2.0
"""Reads idx files, the format of MNIST and its kin, plain or gzipped.

An idx file is 0, 0, a type code, the number of dimensions, each dimension as a big-endian uint32,
and then the values, big-endian, the last dimension fastest. Nothing else may follow.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from agnosticfl.data.formats.files import find_file, reading
from agnosticfl.data.formats.limits import reason
from agnosticfl.errors import BadInput, check

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# More than the largest file of the family (EMNIST by class: 640 MB); a gzip bomb asks for more.
MAX_BYTES = 1 << 30
_CHUNK = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_idx(path: Path, dtype: str, shape: Sequence[int | None]) -> np.ndarray:
    """The array of one file, in native byte order.

    Args:
      path: the file; whether it is gzipped is seen from its first bytes.
      dtype: the type the values must have.
      shape: the dimensions the array must have, None where any is allowed.
    """
    with reading(path), path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not zipped:
            return _parse(path, raw, dtype, shape)
        try:
            with gzip.open(raw) as stream:
                return _parse(path, stream, dtype, shape)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"the gzip data is cut off or damaged ({reason(error)})"
            raise BadInput(f"{path}: {problem}") from error


def read_labelled_images(
    sources: Sequence[Path], part: str, classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 28, 28] and labels [n] of `part` ("train" or "t10k"), checked to fit together."""
    image_path = find_idx(sources, f"{part}-images", "idx3-ubyte")
    label_path = find_idx(sources, f"{part}-labels", "idx1-ubyte")
    images = read_idx(image_path, "uint8", (None, 28, 28))
    labels = read_idx(label_path, "uint8", (None,))
    check(
        len(labels) == len(images),
        f"{label_path} has {len(labels)} labels, but {image_path.name} has {len(images)} images",
    )
    bad = np.flatnonzero(labels >= classes)
    if len(bad):
        place = f"{label_path}: row {bad[0]} (offset {8 + bad[0]})"
        raise BadInput(f"{place} has label {labels[bad[0]]}; allowed: 0 to {classes - 1}")
    return images, labels


def find_idx(sources: Sequence[Path], part: str, kind: str) -> Path:
    """The file of `part`; mirrors spell it part-idx3-ubyte or part.idx3-ubyte, gzipped or not."""
    return find_file(sources, *(f"{part}{dot}{kind}{gz}" for dot in "-." for gz in ("", ".gz")))


def _parse(path: Path, stream: _Readable, dtype: str, shape: Sequence[int | None]) -> np.ndarray:
    head = _read(stream, 4)
    check(
        len(head) == 4 and head[:2] == b"\0\0" and head[2] in _TYPES,
        f"{path}: starts with {head.hex() or 'nothing'} at offset 0; this is no idx file",
    )
    stored, ndim = np.dtype(_TYPES[head[2]]), head[3]
    check(
        stored.newbyteorder("=") == np.dtype(dtype) and ndim == len(shape),
        f"{path}: holds {ndim}-dimensional {stored.newbyteorder('=')} (offset 2);"
        f" {len(shape)}-dimensional {dtype} is needed",
    )
    sizes = _read(stream, 4 * ndim)
    check(len(sizes) == 4 * ndim, f"{path}: ends at offset {4 + len(sizes)}, within the header")
    dims = struct.unpack(f">{ndim}I", sizes)
    for axis, (size, wanted) in enumerate(zip(dims, shape, strict=True)):
        check(
            wanted is None or size == wanted,
            f"{path}: dimension {axis} is {size} (offset {4 + 4 * axis}); it must be {wanted}",
        )
    return _values(path, stream, stored, dims)


def _values(path: Path, stream: _Readable, stored: np.dtype, dims: tuple[int, ...]) -> np.ndarray:
    start, length = 4 + 4 * len(dims), stored.itemsize
    for size in dims:  # Python's integers: the product of the header's sizes cannot overflow
        length *= size
    check(length <= MAX_BYTES, f"{path}: dimensions {dims} (offset 4) ask for {length} bytes")
    data = _read(stream, length + 1)
    check(
        len(data) >= length,
        f"{path}: ends at offset {start + len(data)}; dimensions {dims} need {start + length}",
    )
    check(
        len(data) == length,
        f"{path}: goes on after offset {start + length}, where dimensions {dims} end",
    )
    return np.frombuffer(data, stored).reshape(dims).astype(stored.newbyteorder("="))


def _read(stream: _Readable, size: int) -> bytes:
    """Up to `size` bytes, in chunks: a false size in a header must not allocate memory at once."""
    data = bytearray()
    while len(data) < size:
        chunk = stream.read(min(_CHUNK, size - len(data)))
        if not chunk:
            break
        data += chunk
    return bytes(data)
