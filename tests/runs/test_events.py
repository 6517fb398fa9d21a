# SPDX-License-Identifier: Apache-2.0
"""Event files: TensorBoard's own reader, which checks every checksum, finds what was written."""

import math
import random
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as byte_by_byte

from agnosticfl.runs.events import PIECE, EventFile, crc32c


def test_checksums_of_rfc_3720():
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 6])
def test_a_checksum_is_the_same_as_byte_by_byte(length: int):
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == byte_by_byte(data)


def test_what_was_written_is_read(tmp_path: Path):
    file = EventFile(tmp_path / "made")
    file.start(8)
    values = {"loss/a": 0.1, "λ/ü": -3.0, "t" * 300: 0.0, "none": math.nan, "much": 1e300}
    file.add_scalars(8, 123.5, values)
    file.add_scalars(2**40, 0.0, {"loss/a": -1e300})
    file.close()
    (path,) = (tmp_path / "made").iterdir()
    first, start, one, last = map(Event.FromString, RawEventFileLoader(str(path)).Load())
    assert first.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (8, SessionLog.START)
    assert (one.step, one.wall_time) == (8, 123.5)
    found = {value.tag: value.simple_value for value in one.summary.value}
    assert list(found) == list(values)
    assert found["loss/a"] == pytest.approx(0.1, rel=1e-7)
    assert (found["λ/ü"], found["t" * 300], found["much"]) == (-3.0, 0.0, math.inf)
    assert math.isnan(found["none"])
    assert (last.step, last.wall_time) == (2**40, 0.0)
    assert [value.simple_value for value in last.summary.value] == [-math.inf]


def test_files_of_one_process_do_not_meet(tmp_path: Path):
    for _ in range(3):
        EventFile(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 3
