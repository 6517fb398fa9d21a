# SPDX-License-Identifier: Apache-2.0
"""emnist: the same writers from FedJAX's, TFF's and LEAF's files."""

import json
import re
import sqlite3
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats import fedjax_sqlite
from agnosticfl.data.loaders import emnist
from agnosticfl.errors import BadInput
from tests.data.image_files import (
    WRITERS,
    Examples,
    bars,
    collect,
    pack,
    white_paper,
    write_clients,
    write_hdf5,
    write_leaf,
    write_sqlite,
)
from tests.data.texts import refusal

FORMATS = {"sqlite": write_sqlite, "hdf5": write_hdf5, "leaf": write_leaf}
Write = Callable[..., Path]
LABELS = [label for labels in WRITERS.values() for label in labels]
every_format = pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)


def load_all(*paths: Path, split: str | None = None):
    return collect(emnist.load(paths, split=split))


def labels_read(path: Path) -> list[int] | None:
    """The labels that a file gives in sound examples; None if it is refused in one line."""
    splits: dict[str, Examples] = {}
    message = refusal(lambda: splits.update(load_all(path)))
    if message is not None:
        assert str(path) in message
        return None
    for split in splits.values():  # images and types are checked by `collect`
        assert all(re.fullmatch(r"f\d{4}_\d{2}", client) for client in split.clients)
        assert set(split.domain) <= {"census", "high school"}
        assert all(0 <= label <= 61 for label in split.features["y"])
    return [int(label) for split in splits.values() for label in split.features["y"]]


def packed(value: Any) -> bytes:
    data: Any = msgpack.packb(value)
    return zlib.compress(data)


def extension(code: int, *parts: Any) -> bytes:
    inner: Any = msgpack.packb(parts)
    return packed({"x": msgpack.ExtType(code, inner)})


@every_format
def test_each_format_gives_the_same_examples(tmp_path: Path, write: Write) -> None:
    train = load_all(write(tmp_path / "emnist_train"))["train"]
    assert train.clients == [w for w, labels in WRITERS.items() for _ in labels]
    assert train.features["y"].tolist() == [3, 61, 0, 10, 36, 5, 1, 2]
    assert train.domain == ["census"] * 2 + ["high school"] * 4 + ["census"] * 2
    # Ink 255 on 0, although the files have black ink on 1.0.
    np.testing.assert_array_equal(train.features["x"], bars([3, 61, 0, 10, 36, 5, 1, 2]))


def test_images_inverted_before_come_out_the_same(tmp_path: Path) -> None:
    dark = {"pixels": bars([3, 4]) / 255, "label": np.array([3, 4])}
    path = write_clients(tmp_path / "train.sqlite", {"f0000_00": dark})
    np.testing.assert_array_equal(load_all(path)["train"].features["x"], bars([3, 4]))


def test_the_split_is_told_by_file_or_folder(tmp_path: Path) -> None:
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
    for k, writer in enumerate(["f0001_00", "f0002_00"]):
        write_leaf(tmp_path / "train" / f"all_data_{k}.json", {writer: [1]})
    write_leaf(tmp_path / "test" / "all_data_0.json", {"f0001_00": [2]})
    (tmp_path / "README").write_text("not data: passed over")
    splits = load_all(tmp_path)
    assert splits["train"].clients == ["f0001_00", "f0002_00"]
    assert splits["test"].clients == ["f0001_00"]  # LEAF's split by sample: the same person
    moved = load_all(tmp_path / "train", split="heldout")
    assert list(moved) == ["heldout"]


def test_a_split_that_cannot_be_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("latest.json", "train_test.json"):
        path = write_leaf(folder / name)
        with pytest.raises(BadInput, match=f"{name}: neither name nor folder says train or test"):
            emnist.load([path])
    with pytest.raises(BadInput, match=r"unknown split 'tran'; did you mean 'train'\?"):
        emnist.load([folder], split="tran")


def test_the_same_writers_twice_are_refused(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "emnist_train.sqlite")
    write_hdf5(tmp_path / "emnist_train.h5")
    with pytest.raises(BadInput, match=r"f2099_01' was in .*emnist_train.h5 already"):
        load_all(tmp_path)


@every_format
def test_a_writer_without_examples_is_counted(tmp_path: Path, write: Write) -> None:
    source = emnist.load([write(tmp_path / "train", {"f0001_00": [], "f0002_00": [1]})])
    assert collect(source)["train"].clients == ["f0002_00"]
    assert source.left_out == {"writers without an example": 1}
    collect(source)
    assert source.left_out == {"writers without an example": 1}  # a second pass counts afresh


@every_format
def test_bad_writers_and_labels(tmp_path: Path, write: Write) -> None:
    for k, name in enumerate(["g0001_00", "f001_00", "f0001_00 ", "f" * 10_000]):
        with pytest.raises(
            BadInput,
            match=r"is no writer of EMNIST; those are called fNNNN_NN|at most 1000 are allowed",
        ) as e:
            load_all(write(tmp_path / f"{k}_train", {name: [1]}))
        assert len(str(e.value)) < 400
    with pytest.raises(BadInput, match="f0001_00', example 1: label is 62; allowed: 0 to 61"):
        load_all(write(tmp_path / "train", {"f0001_00": [1, 62]}))
    with pytest.raises(BadInput, match=r"empty_train: (holds no writer|no group 'examples')"):
        load_all(write(tmp_path / "empty_train", {}))


def test_unknown_files(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("a,b\n")
    with pytest.raises(BadInput, match=r"train.csv is no SQLite file, HDF5 file or JSON object"):
        emnist.load([path])
    with pytest.raises(BadInput, match=f"no SQLite, HDF5 or JSON file of EMNIST in {tmp_path}"):
        emnist.load([tmp_path])
    other = tmp_path / "other_train.sqlite"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
    with pytest.raises(BadInput, match="no table federated_data"):
        load_all(other)


LABEL = np.array([1], np.int32)
BAD_FEATURES = {
    "no pixels": ({"label": LABEL}, "no feature 'pixels'"),
    "nan": ({"pixels": np.full((1, 28, 28), np.nan), "label": LABEL}, "numbers from 0 to 1"),
    "bytes": ({"pixels": np.full((1, 28, 28), 255), "label": LABEL}, "numbers from 0 to 1"),
    "shape": ({"pixels": np.zeros((1, 28)), "label": LABEL}, r"shape \(1, 28\) for 1 labels"),
    "lengths": ({"pixels": white_paper([1, 1]), "label": LABEL}, "arrays of 1 examples"),
    "float label": ({"pixels": white_paper([1]), "label": np.array([1.0])}, "labels are float64"),
    "text": (
        {"pixels": np.array([b"x"] * 784, object).reshape(1, 784), "label": LABEL},
        "numbers from 0 to 1",
    ),
}


@pytest.mark.parametrize(("features", "message"), BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_bad_features(tmp_path: Path, features: dict[str, np.ndarray], message: str) -> None:
    path = write_clients(tmp_path / "train.sqlite", {"f0001_00": features})
    with pytest.raises(BadInput, match=f"client 'f0001_00'.*{message}"):
        load_all(path)


@every_format
def test_truncated_files_are_bad_input(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "train")
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="train"):
            load_all(path)


@every_format
def test_damaged_files_give_examples_or_bad_input(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "train")
    assert labels_read(path) == LABELS
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    found: list[list[int] | None] = []
    for _ in range(60):
        damaged = whole.copy()
        # The first pages hold the structure, the rest is mostly pixels.
        damaged[rng.integers(4000, size=5)] = rng.integers(256, size=5)
        path.write_bytes(damaged.tobytes())
        found.append(labels_read(path))
    assert None in found
    assert all(len(labels) <= len(LABELS) for labels in found if labels is not None)


@pytest.mark.parametrize(("write", "module"), [(write_hdf5, "h5py"), (write_leaf, "ijson")])
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, module: str
) -> None:
    path = write(tmp_path / "train")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=rf"needs {module}: pip install 'agnosticfl\[data\]'"):
        load_all(path)


def test_fedjax_byte_strings_and_scalars() -> None:
    words = np.array([b"how to", b""], object)
    decoded = fedjax_sqlite.decode(pack({"tokens": words, "score": np.array([1, -2])}), 2, "here")
    assert decoded["tokens"].tolist() == [b"how to", b""]
    assert decoded["score"].tolist() == [1, -2]
    with pytest.raises(BadInput, match="not a map of names to arrays of 1 examples"):
        fedjax_sqlite.decode(extension(3, [], "float32", b"\0\0\x80\x3f"), 1, "here")


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        ("text", "data is str; it must be a BLOB"),
        (b"not zlib", "malformed data"),
        (packed({})[:-1], "the zlib data is cut off"),
        (packed([1]), "data is not a map of names to arrays"),
        (packed({"x": 1}), "data is not a map of names to arrays"),
        (extension(1, [2], "uint8", b"12"), "arrays of 1 examples"),
        (extension(9, 1), "unknown msgpack extension 9"),
        (extension(1, [1], "object", b"12345678"), "b'object' is no numeric type"),
        (extension(1, [-1], "uint8", b"1"), r"\[-1\] is no shape"),
        (extension(1, [2], "uint8", b"1"), "malformed data"),
        (extension(1, [1], "int32", b"1"), "malformed data"),
        (extension(4, [1], [5]), "an array of byte strings holds something else"),
    ],
)
def test_malformed_fedjax_data(blob: Any, message: str) -> None:
    with pytest.raises(BadInput, match=f"^here: .*{message}"):
        fedjax_sqlite.decode(blob, 1, "here")


def test_a_zlib_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedjax_sqlite, "MAX_CLIENT_BYTES", 1000)
    with pytest.raises(BadInput, match="it inflates to more than 1000 bytes"):
        fedjax_sqlite.decode(zlib.compress(b"\0" * 100_000), 1, "here")


def test_a_large_empty_hdf5_data_set_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    with h5py.File(path, "w") as file:
        shape = (10**9, 28, 28)
        file.create_dataset("examples/f0001_00/pixels", shape, "f4", chunks=(1, 28, 28))
    with pytest.raises(BadInput, match="'pixels' would take 3136000000000 bytes"):
        load_all(path)


GOOD = zlib.decompress(pack({"pixels": white_paper([1]), "label": LABEL}))


@given(st.binary(max_size=40), st.integers(0, len(GOOD)))
def test_any_data_gives_arrays_or_bad_input(noise: bytes, place: int) -> None:
    for blob in (noise, zlib.compress(GOOD[:place] + noise + GOOD[place + len(noise) :])):
        with suppress(BadInput):
            decoded = fedjax_sqlite.decode(blob, 1, "here")
            assert all(isinstance(array, np.ndarray) for array in decoded.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["", "user_data", "f0001_00", "x", "y"]))
def test_any_json_gives_examples_or_bad_input(
    tmp_path_factory: pytest.TempPathFactory, value: Any, place: str
) -> None:
    person = {"x": [[1.0] * 784], "y": [1]}
    if place in person:
        person[place] = value
    users = {"f0001_00": value if place == "f0001_00" else person}
    whole = {"user_data": value if place == "user_data" else users}
    path = tmp_path_factory.getbasetemp() / "any_train.json"
    path.write_text(json.dumps(value if place == "" else whole))
    labels = labels_read(path)
    if labels is not None:  # then they are those of the file
        assert labels == whole["user_data"]["f0001_00"]["y"]
