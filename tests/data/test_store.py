# SPDX-License-Identifier: Apache-2.0
"""The store: what goes in comes out, nothing half-written opens, damage is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.data.collect import collect
from agnosticfl.data.preparation.record import Number, Preparation
from agnosticfl.data.source import Feature, Rows
from agnosticfl.data.store.check import check_store
from agnosticfl.data.store.reader import FORMAT, META, open_store
from agnosticfl.data.store.writer import write_store
from agnosticfl.errors import BadInput
from tests.data.rows import rows, source

TWO = (rows("train", ["b", "a", "b"], [0, 1, 0]), rows("test", ["é", "b"], [0, 0], first=3))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(source(*TWO, left_out={"no owner": 7}, labels=("cat", "dog")), tmp_path / "s")
    return tmp_path / "s"


def test_examples_of_a_client_lie_together_in_their_order(store: Path) -> None:
    opened = open_store(store)
    train, test = opened.splits["train"], opened.splits["test"]
    assert list(train.client_ids) == ["a", "b"]
    assert list(test.client_ids) == ["b", "é"]
    assert train.offsets.tolist() == [0, 1, 3]
    assert train.examples["y"].tolist() == [1, 0, 2]
    assert train.examples["x"].tolist() == [[1, -1], [0, 0], [2, -2]]
    assert train.domain.tolist() == [1, 0, 0]
    assert test.examples["y"].tolist() == [4, 3]
    assert train.sizes_of(np.array([1, 0])).tolist() == [2, 1]
    assert train.domains == ("us", "ar")
    assert opened.meta.left_out == {"no owner": 7}
    assert opened.meta.labels == ("cat", "dog")
    assert opened.vocabulary() is None
    assert list(opened.splits) == ["train", "test"]


def test_a_store_of_an_older_program_opens(store: Path) -> None:
    """Version 1 had no notes and no preparation.json at first."""
    meta = json.loads((store / META).read_text())
    assert meta.pop("notes") == []
    (store / META).write_text(json.dumps(meta))
    opened = open_store(store)
    assert opened.meta.notes == ()
    assert opened.preparation() is None
    assert check_store(store) == []


def test_what_was_learnt_from_a_raw_table_is_part_of_the_store(tmp_path: Path) -> None:
    digests: set[str] = set()
    for name in ("age", "pay"):
        steps = Preparation((Number(name), Number("b")))
        write_store(source(*TWO, preparation=steps, notes=("few",)), tmp_path / name)
        opened = open_store(tmp_path / name)
        assert opened.preparation() == steps
        assert opened.meta.notes == ("few",)
        digests.add(opened.digest)
    assert len(digests) == 2  # a run belongs to its columns too
    file = tmp_path / "age" / "preparation.json"
    file.write_text("[" + file.read_text()[1:])
    with pytest.raises(BadInput, match=r"preparation.json cannot be read"):
        open_store(tmp_path / "age").preparation()
    assert check_store(tmp_path / "age") == [
        "preparation.json: the checksum differs from the one in meta.json"
    ]


def test_arrays_are_views_of_the_mapped_file(store: Path) -> None:
    opened = open_store(store)
    memory = np.frombuffer(opened.maps["train/examples.arrow"], np.uint8)
    slice_of_b = opened.splits["train"].examples["x"][1:3]
    assert np.shares_memory(memory, slice_of_b)
    opened.release()
    assert slice_of_b.tolist() == [[0, 0], [2, -2]]


def test_files_are_plain_arrow(store: Path) -> None:
    with pyarrow.ipc.open_file(str(store / "train" / "examples.arrow")) as file:
        table = file.read_all()
    assert table.to_pydict() == {"x": [[1, -1], [0, 0], [2, -2]], "y": [1, 0, 2]}


def test_the_vocabulary_is_kept(tmp_path: Path) -> None:
    write_store(source(*TWO, vocabulary=("<pad>", "ñu")), tmp_path / "s")
    assert open_store(tmp_path / "s").vocabulary() == ("<pad>", "ñu")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "test"]),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 7),
)
def test_a_store_gives_back_its_rows(examples: list[tuple[str, str, int]], step: int) -> None:
    everyone = [("train", "one", 0), ("train", "two", 1), *examples]
    # Pieces of one split each, of up to `step` rows, as a loader would stream them.
    pieces: list[Rows] = []
    for first in range(0, len(everyone), step):
        part = everyone[first : first + step]
        for split in dict.fromkeys(split for split, _, _ in part):
            chosen = [(c, d) for s, c, d in part if s == split]
            start = sum(len(piece.clients) for piece in pieces)
            pieces.append(rows(split, [c for c, _ in chosen], [d for _, d in chosen], start))
    with tempfile.TemporaryDirectory() as folder:
        made = source(*pieces)
        write_store(made, Path(folder) / "s")
        assert check_store(Path(folder) / "s") == []
        opened = open_store(Path(folder) / "s")
        for split, expected in collect(made).items():
            found = opened.splits[split]
            assert list(found.client_ids) == list(expected.client_ids)
            np.testing.assert_array_equal(found.offsets, expected.offsets)
            np.testing.assert_array_equal(found.domain, expected.domain)
            for name, values in expected.examples.items():
                np.testing.assert_array_equal(found.examples[name], values)


def test_wide_records_keep_to_their_clients(tmp_path: Path) -> None:
    """A record of several pages is not sorted itself."""
    number = np.arange(30)
    photos = np.broadcast_to(number[:, None, None], (30, 50, 60)).astype(np.float32)
    clients = [f"c{k % 7}" for k in number]
    piece = Rows("train", clients, (number % 2).astype(np.int32), {"photo": photos})
    made = source(piece, piece, features={"photo": Feature("float32", (50, 60))})
    write_store(made, tmp_path / "s")
    found, expected = open_store(tmp_path / "s").splits["train"], collect(made)["train"]
    assert list(found.client_ids) == list(expected.client_ids)
    np.testing.assert_array_equal(found.examples["photo"], expected.examples["photo"])
    np.testing.assert_array_equal(found.domain, expected.domain)
    np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_a_store_may_be_there_to_test_on(tmp_path: Path):
    write_store(source(rows("test", ["a", "b"], [0, 1])), tmp_path / "s")
    assert set(open_store(tmp_path / "s").splits) == {"test"}
    assert list(check_store(tmp_path / "s")) == []


def bad_feature(name: str, values: np.ndarray) -> Rows:
    piece = rows("train", ["a", "b"], [0, 1])
    return piece._replace(features={**piece.features, name: values})


NAN = np.array([[0, 0], [0, np.nan]], np.float32)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "no examples"),
        ([rows("train", ["a"], [0])], "no example in train of domain ar"),
        ([rows("dev", ["a"], [0])], "unknown split .* 'dev'"),
        ([rows("train", ["a", "b"], [0, 2])], "row 1: domain 2 is not from 0 to 1"),
        ([rows("train", ["a", "b"], [0, -1])], "row 1: domain -1"),
        ([TWO[0], rows("train", ["b", ""], [0, 1])], "row 4: the client id has 0 bytes"),
        ([rows("train", ["a", "b" * 10_000], [0, 1])], "row 1: the client id has 10000 bytes"),
        ([rows("train", ["a", "\ud800"], [0, 1])], "a client id is no text"),
        ([rows("train", ["a"], [0, 1])], "1 clients, but domains"),
        ([bad_feature("x", NAN)], "feature 'x', row 1: nan is no finite number"),
        ([bad_feature("x", np.zeros((2, 2)))], r"float64 \[2, 2\] instead of float32 \[2, 2\]"),
        ([bad_feature("y", np.zeros((2, 1), np.int32))], r"int32 \[2, 1\] instead of int32 \[2\]"),
        ([bad_feature("z", np.zeros(2, np.int32))], "features are .*'z'"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_left(
    tmp_path: Path, pieces: list[Rows], message: str
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        write_store(source(*pieces), tmp_path / "s")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"domains": ()},
        {"domains": ("us", "us")},
        {"features": {}},
        {"features": {"x": Feature("float32", (0,))}},
        {"features": {"x": Feature("bool", ())}},
    ],
)
def test_a_bad_schema_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="made up"):
        write_store(source(*TWO, **changes), tmp_path / "s")


def test_only_a_store_is_overwritten(store: Path, tmp_path: Path) -> None:
    again = source(rows("train", ["new", "new"], [0, 1]))
    with pytest.raises(BadInput, match="exists"):
        write_store(again, store)
    assert open_store(store).meta.splits["train"].clients == 2
    write_store(again, store, overwrite=True)
    assert open_store(store).meta.splits["train"].clients == 1
    (tmp_path / "photos").mkdir()
    with pytest.raises(BadInput, match="is no store"):
        write_store(again, tmp_path / "photos", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "s"]


def test_a_failed_overwrite_leaves_the_old_store(store: Path) -> None:
    with pytest.raises(BadInput):
        write_store(source(), store, overwrite=True)
    assert check_store(store) == []


def test_a_place_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "it's [1]*? {a,b}" / "s"
    write_store(source(*TWO), path)
    assert check_store(path) == []


KILLED = """
import sys
from agnosticfl.data.store.writer import write_store
from tests.data.rows import rows, source

def pieces():
    yield rows("train", ["a", "b"] * 1000, [0, 1] * 1000)
    if stage == "reading":
        wait()

def wait():
    print("ready", flush=True)
    sys.stdin.read()

def progress(now, done, total):
    if now.startswith(stage) and stage != "reading":
        wait()

stage = sys.argv[2]
write_store(source(rows=pieces), sys.argv[1], progress, overwrite=True)
"""


@pytest.mark.parametrize("stage", ["reading", "sorting", "writing", "checksums"])
def test_a_killed_build_leaves_nothing_that_opens(tmp_path: Path, stage: str) -> None:
    out = tmp_path / "s"
    arguments = [sys.executable, "-c", KILLED, str(out), stage]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as build:
        assert build.stdout is not None
        assert build.stdout.readline() == b"ready\n"
        with pytest.raises(BadInput, match="being built by another process"):
            write_store(source(*TWO), out)
        build.send_signal(signal.SIGKILL)
        build.wait()
    leftovers = list(tmp_path.iterdir())
    assert [path.name for path in leftovers] == [".s.building"]
    for path in (out, *leftovers):
        with pytest.raises(BadInput, match="is no store"):
            open_store(path)
    write_store(source(*TWO), out)
    assert check_store(out) == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_program_killed_between_two_renames_loses_nothing(store: Path, tmp_path: Path) -> None:
    store.rename(tmp_path / ".s.replaced")  # as if it had died before the new store was there
    with pytest.raises(BadInput, match="exists"):
        write_store(source(*TWO), store)
    assert check_store(store) == []


def files(store: Path) -> Iterator[Path]:
    return (file for file in sorted(store.rglob("*")) if file.is_file())


def test_truncated_files_are_named(store: Path) -> None:
    for file in files(store):
        whole = file.read_bytes()
        for length in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            file.write_bytes(whole[:length])
            with pytest.raises(BadInput, match=file.name) as caught:
                open_store(store)
            assert "\n" not in str(caught.value)
        file.write_bytes(whole)
    assert check_store(store) == []


def test_changed_missing_and_extra_files_are_named(store: Path) -> None:
    file = store / "train" / "examples.arrow"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1  # in the magic word at the end
    file.write_bytes(whole)
    with pytest.raises(BadInput, match=r"examples\.arrow is no Arrow file"):
        open_store(store)
    whole[-1] ^= 1
    place = bytes(whole).index(np.float32(-2).tobytes())
    whole[place] ^= 1
    file.write_bytes(whole)
    (store / "notes.txt").touch()
    assert check_store(store) == [
        "train/examples.arrow: the checksum differs from the one in meta.json",
        "notes.txt: the file is not listed in meta.json",
    ]
    file.unlink()
    with pytest.raises(BadInput, match=r"examples\.arrow is missing"):
        open_store(store)


def change_meta(store: Path, **changes: Any) -> None:
    meta = json.loads((store / META).read_text(encoding="utf-8"))
    (store / META).write_text(json.dumps({**meta, **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "format version 2, but this program reads version 1"),
        ({"format": "zip"}, "is not of a store"),
        ({"splits": {"train": {"clients": 2, "examples": 4}}}, "3 rows .* instead of 4"),
        ({"splits": {"dev": {"clients": 2, "examples": 3}}}, "unknown split"),
        ({"splits": {"train": 3}}, "is damaged"),
        ({"files": {}}, "not listed"),
        ({"features": {"x": {"dtype": "float32", "shape": [3]}}}, "does not fit"),
        ({"features": {"x": {"dtype": "colour", "shape": [3]}}}, "is damaged"),
    ],
)
def test_a_wrong_meta_is_named(store: Path, changes: dict[str, Any], message: str) -> None:
    change_meta(store, **changes)
    with pytest.raises(BadInput, match=message) as caught:
        open_store(store)
    assert str(store) in str(caught.value)


def test_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path(__file__)):
        with pytest.raises(BadInput, match="is no store"):
            open_store(path)
    (tmp_path / META).write_text(json.dumps([FORMAT]))
    with pytest.raises(BadInput, match="is not of a store"):
        open_store(tmp_path)


def test_broken_promises_are_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_store(store)
    train = opened.splits["train"]
    wrong = train._replace(
        offsets=np.array([0, 0, 2]),
        domain=np.array([0, 5, 0], np.int32),
        client_ids=train.client_ids[::-1],
        examples={"x": np.array([[0, 0], [0, 0], [np.inf, 0]], np.float32)},
    )
    broken = opened._replace(splits={"train": wrong})
    monkeypatch.setattr("agnosticfl.data.store.check.open_store", lambda _: broken)
    assert check_store(store) == [
        "train: offsets do not run from 0 to the number of examples, 3",
        "train: client 0 has no examples",
        "train: row 1: domain 5 is not one of 2",
        "train: client ids are not different and in order, from client 0 on",
        "train: feature 'x', row 2: no finite number",
    ]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    write_store(source(*TWO, total=5), tmp_path / "s", lambda *now: told.append(now))
    assert [now for now in told if now[0] == "reading"] == [("reading", 3, 5), ("reading", 5, 5)]
    assert ("writing train", 3, 3) in told
    assert told[-1] == ("checksums", 8, 8)


def test_a_copy_of_a_store_is_a_store(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "copy")
    assert check_store(tmp_path / "copy") == []


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(BadInput, match=r"needs duckdb: pip install 'agnosticfl\[data\]'"):
        write_store(source(*TWO), tmp_path / "s")
