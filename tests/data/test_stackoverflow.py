# SPDX-License-Identifier: Apache-2.0
"""Stack Overflow: FedJAX's SQLite, TFF's SQLite and HDF5."""

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats.tf_example import bytes_features
from agnosticfl.data.loaders.stackoverflow import load
from tests.data.texts import one_line, read_back, refusal, truncations_are_clean

FEDJAX_TABLE = "federated_data(client_id BLOB, data BLOB, num_examples INTEGER)"

# client -> (tokens, type) of each sentence
Posts = dict[str, Sequence[tuple[bytes, bytes]]]
POSTS: Posts = {
    "10": [(b"how do i sort a list ?", b"question"), (b"use sorted", b"answer")],
    "20": [("así es ñandú".encode(), b"answer"), (b"", b"answer"), (b"yes", b"answer")],
}
EXPECTED = [
    ("train", "10", "answer", "use sorted"),
    ("train", "10", "question", "how do i sort a list ?"),
    ("train", "20", "answer", "así es ñandú"),
    ("train", "20", "answer", "yes"),
]


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


FILES: dict[str, Callable[[Path], Path]] = {
    "so_train.sqlite": write_fedjax,
    "stackoverflow.sqlite": write_tff_sqlite,
    "so_train.h5": write_hdf5,
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return FILES[request.param](tmp_path / request.param)


def test_the_three_formats_give_the_same_sentences(file: Path) -> None:
    source = load([file])
    assert read_back(source) == EXPECTED
    assert source.domains == ("question", "answer")
    assert source.left_out == {"sentences without a word": 1}


def test_a_client_is_capped(file: Path) -> None:
    source = load([file], max_sentences_per_client=1)
    assert [line[1] for line in read_back(source)] == ["10", "20"]
    # Of client 20 the empty sentence is counted as empty, the third as over the cap.
    assert source.left_out["sentences over 1 of a client"] == 2


def test_every_truncation_is_refused_or_read(file: Path) -> None:
    truncations_are_clean(file, lambda path: load([path]))


def test_splits_come_from_names_options_and_rows(tmp_path: Path) -> None:
    train = write_fedjax(tmp_path / "stackoverflow_train.sqlite")
    held_out = write_hdf5(tmp_path / "stackoverflow_held_out.h5")
    tff = write_tff_sqlite(tmp_path / "stackoverflow.sqlite", split="test")
    source = load([train, held_out, tff])
    assert {line[0] for line in read_back(source)} == {"train", "heldout", "test"}
    assert source.total == 12

    other = write_fedjax(tmp_path / "other.sqlite")
    assert read_back(load([other], split="train")) == EXPECTED
    assert "'other.sqlite' does not tell the split" in one_line(lambda: load([other]))
    assert "did you mean 'test'" in one_line(lambda: load([other], split="tests"))
    assert "leave out --split" in one_line(lambda: load([tff], split="train"))


def test_bad_values_are_named_with_their_place(tmp_path: Path) -> None:
    def refused(posts: Posts) -> str:
        number = len(list(tmp_path.iterdir()))
        path = write_fedjax(tmp_path / f"{number}_train.sqlite", posts)
        return one_line(lambda: load([path]))

    assert "client 1, sentence 0: `type` is b'wiki'" in refused({"1": [(b"a", b"wiki")]})
    assert "sentence 0: `tokens` is not UTF-8 at byte 1" in refused({"1": [(b"a\xf1", b"answer")]})
    assert "row 1: the client id 'xxx" in refused({"x" * 10_240: [(b"a", b"answer")]})
    assert "row 1: the client id is empty" in refused({"": [(b"a", b"answer")]})
    assert "no training client has a word" in refused({})
    bad_split = write_tff_sqlite(tmp_path / "so.sqlite", split="validation")
    assert "row 1: split_name is 'validation'" in one_line(lambda: load([bad_split]))
    assert "at least 1" in one_line(lambda: load([bad_split], max_sentences_per_client=0))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "train.txt"
    text.write_text("hello")
    assert "neither an SQLite nor an HDF5 file" in one_line(lambda: load([text]))
    assert "cannot be read" in one_line(lambda: load([tmp_path / "absent_train.h5"]))
    table = write_table(tmp_path / "t_train.sqlite", "people(name TEXT)", [("ann",)])
    assert "neither a table federated_data" in one_line(lambda: load([table]))
    columns = write_table(tmp_path / "c_train.sqlite", "federated_data(client_id TEXT)", [("a",)])
    assert "no such column" in one_line(lambda: load([columns]))
    bare = tmp_path / "train.h5"
    with h5py.File(bare, "w") as file:
        file.create_group("examples/ann")
    assert "client 'ann': no data set 'tokens'" in one_line(lambda: load([bare]))


@given(st.binary(max_size=100), st.integers(0, 60))
def test_any_example_is_refused_or_decoded(noise: bytes, position: int) -> None:
    good = example(b"hello there", b"answer")
    assert bytes_features(good, "here") == {"tokens": b"hello there", "type": b"answer"}
    message = refusal(lambda: bytes_features(good[:position] + noise, "here"))
    assert message is None or message.startswith("here: ")
