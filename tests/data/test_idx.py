# SPDX-License-Identifier: Apache-2.0
"""The idx reader: what it reads, and the place it names when it cannot."""

import gzip
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats import idx
from agnosticfl.data.formats.idx import find_idx, read_idx, read_labelled_images
from agnosticfl.errors import BadInput
from tests.data.image_files import idx_bytes, write_images

TABLE = np.array([[1, -2, 3], [4, 5, 2**31 - 1]], np.int32)
GOOD = idx_bytes(TABLE)  # 12 bytes of header, 24 of values
ZIPPED = gzip.compress(GOOD, mtime=0)


def read_table(path: Path, data: bytes) -> np.ndarray:
    path.write_bytes(data)
    return read_idx(path, "int32", (None, 3))


@pytest.mark.parametrize("packed", [GOOD, ZIPPED], ids=["plain", "gzip"])
def test_reads_plain_and_gzip(tmp_path: Path, packed: bytes) -> None:
    array = read_table(tmp_path / "file", packed)
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, TABLE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "starts with nothing at offset 0; this is no idx file"),
        (b"PK\x03\x04" + GOOD, "starts with 504b0304 at offset 0"),
        (b"\0\0\x07" + GOOD[3:], "starts with 00000702"),
        (b"\0\0\x08" + GOOD[3:], r"holds 2-dimensional uint8 \(offset 2\); 2-dimensional int32"),
        (b"\0\0\x0c\x03" + GOOD[4:], "holds 3-dimensional int32"),
        (GOOD[:9], "ends at offset 9, within the header"),
        (GOOD[:8] + b"\0\0\0\x04" + GOOD[12:], r"dimension 1 is 4 \(offset 8\); it must be 3"),
        (GOOD[:-1], r"ends at offset 35; dimensions \(2, 3\) need 36"),
        (GOOD + b"\0", "goes on after offset 36"),
        (GOOD[:4] + b"\xff" * 4 + GOOD[8:], "ask for 51539607540 bytes"),
        (ZIPPED[:-9], "gzip data is cut off or damaged"),
        (ZIPPED[:30] + b"\0" * 30, "gzip data is cut off or damaged"),
        (ZIPPED + b"more", "gzip data is cut off or damaged"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as e:
        read_table(tmp_path / "file", data)
    assert str(e.value).startswith(f"{tmp_path / 'file'}: ")
    assert "\n" not in str(e.value)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    for data in (GOOD, ZIPPED):
        for length in range(len(data)):
            with pytest.raises(BadInput):
                read_table(tmp_path / "file", data[:length])


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "MAX_BYTES", 1000)
    bomb = gzip.compress(idx_bytes(np.zeros((1000, 3), np.int32)))
    with pytest.raises(BadInput, match="ask for 12000 bytes"):
        read_table(tmp_path / "file", bomb)


@given(st.binary(max_size=60), st.integers(0, len(GOOD)), st.booleans())
def test_any_bytes_give_a_table_or_bad_input(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int, zipped: bool
) -> None:
    data = GOOD[:place] + noise + GOOD[place + len(noise) :]
    path = tmp_path_factory.getbasetemp() / "noise"
    with suppress(BadInput):
        array = read_table(path, gzip.compress(data) if zipped else data)
        assert array.shape[1] == 3


def test_images_and_labels_must_fit(tmp_path: Path) -> None:
    write_images(tmp_path, "train", [3, 1])
    images, labels = read_labelled_images([tmp_path], "train")
    assert images.shape == (2, 28, 28)
    assert labels.tolist() == [3, 1]
    label_file = tmp_path / "train-labels-idx1-ubyte"
    label_file.write_bytes(idx_bytes(np.array([3], np.uint8)))
    with pytest.raises(BadInput, match="labels-idx1-ubyte has 1 labels, but train-images"):
        read_labelled_images([tmp_path], "train")
    label_file.write_bytes(idx_bytes(np.array([3, 10], np.uint8)))
    with pytest.raises(BadInput, match=r"row 1 \(offset 9\) has label 10; allowed: 0 to 9"):
        read_labelled_images([tmp_path], "train")


def test_files_are_found_by_each_spelling(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"no file train-images-idx3-ubyte or .* in {tmp_path}"):
        find_idx([tmp_path], "train-images", "idx3-ubyte")
    path = tmp_path / "train-images.idx3-ubyte"
    path.touch()
    assert find_idx([tmp_path], "train-images", "idx3-ubyte") == path
    assert find_idx([path], "train-images", "idx3-ubyte") == path
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(BadInput, match="are the same part; give one of them"):
        find_idx([tmp_path], "train-images", "idx3-ubyte")
    with pytest.raises(BadInput, match="absent does not exist"):
        find_idx([tmp_path / "absent"], "train-images", "idx3-ubyte")
