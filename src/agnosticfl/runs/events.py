# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event files: records under checksums (TFRecord), each an `Event` of its protocol.

Written here, since TensorBoard's own writer adds up each checksum byte by byte in Python: that
takes longer than a round of a small model.
"""

import functools
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

PIECE = 2048  # bytes of which a checksum is computed at once
POLYNOMIAL = 0x82F63B78  # of CRC-32C, lowest bit first
_numbers = itertools.count()  # tells the files of one process apart


class EventFile:
    """A new event file in `folder`; what is written is the system's at once."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        own = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        path = folder / f"events.out.tfevents.{int(time.time()):010d}.{own}"
        self._file = path.open("wb", buffering=0)
        self._heads: dict[str, bytes] = {}  # tag -> all of a value but the number
        self._add(_event(0, time.time()) + _bytes_field(3, b"brain.Event:2"))

    def start(self, step: int) -> None:
        """TensorBoard drops what an interrupted run wrote from this step on."""
        self._add(_event(step, 0.0) + _bytes_field(7, b"\x08\x01"))  # SessionLog.START

    def add_scalars(self, step: int, moment: float, values: Mapping[str, float]) -> None:
        """Adds one number for each tag."""
        parts = [self._head(tag) + _float32(value) for tag, value in values.items()]
        self._add(_event(step, moment) + _bytes_field(5, b"".join(parts)))

    def close(self) -> None:
        self._file.close()

    def _head(self, tag: str) -> bytes:
        """Of `Summary.value`: a message with the tag (field 1) and a float (field 2)."""
        if tag not in self._heads:
            named = _bytes_field(1, tag.encode()) + b"\x15"
            self._heads[tag] = b"\x0a" + _varint(len(named) + 4) + named
        return self._heads[tag]

    def _add(self, event: bytes) -> None:
        self._file.write(_length(len(event)) + event + _masked(event))


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720 (Castagnoli), a piece at a time.

    It is linear: each byte adds a number that depends on its distance from the end alone, and what
    came before is added to the first four bytes.
    """
    crc = 0xFFFFFFFF
    whole = len(data) // 4 * 4
    for start in range(0, whole, PIECE):
        piece = np.frombuffer(data[start : min(start + PIECE, whole)], np.uint8).copy()
        piece[:4] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)
        own = _rows()[PIECE - len(piece) :] + piece
        crc = int(np.bitwise_xor.reduce(_table().ravel().take(own)))
    for byte in data[whole:]:  # too few to add four bytes to
        crc = (crc >> 8) ^ int(_table()[0, (crc ^ byte) & 0xFF])
    return crc ^ 0xFFFFFFFF


@functools.cache
def _rows() -> np.ndarray:
    """Where the row of `_table` begins for each byte of a piece."""
    return 256 * np.arange(PIECE - 1, -1, -1)


@functools.cache
def _table() -> np.ndarray:
    """What byte b adds that stands d bytes before the end, [PIECE, 256]."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1)
    table = np.empty((PIECE, 256), np.uint32)
    table[0] = first
    for d in range(1, PIECE):
        table[d] = (table[d - 1] >> 8) ^ first[table[d - 1] & 0xFF]
    return table


@functools.lru_cache(256)  # events of a run have few lengths
def _length(number: int) -> bytes:
    """The length that stands before a record, and its checksum."""
    length = struct.pack("<Q", number)
    return length + _masked(length)


def _masked(data: bytes) -> bytes:
    """A checksum as TFRecord has it: turned and shifted, lest data that holds one fools it."""
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _event(step: int, moment: float) -> bytes:
    """The time (field 1, a double) and the step (field 2) of an `Event`."""
    return b"\x09" + struct.pack("<d", moment) + b"\x10" + _varint(step)


def _bytes_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits to a byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # too large for it
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
