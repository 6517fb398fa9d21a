# SPDX-License-Identifier: Apache-2.0
"""Stack Overflow: FedJAX's SQLite, TFF's SQLite and HDF5."""

from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats.tf_example import bytes_features
from agnosticfl.data.loaders.stackoverflow import load
from tests.data.stackoverflow_files import (
    Posts,
    example,
    write_fedjax,
    write_hdf5,
    write_table,
    write_tff_sqlite,
)
from tests.data.texts import one_line, read_back, refusal, truncations_are_clean

EXPECTED = [
    ("train", "10", "answer", "use sorted"),
    ("train", "10", "question", "how do i sort a list ?"),
    ("train", "20", "answer", "así es ñandú"),
    ("train", "20", "answer", "yes"),
]


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
