# SPDX-License-Identifier: Apache-2.0
"""How raw columns become features, by numbers that a reader can redo."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agnosticfl.data.collect import collect, split_frame
from agnosticfl.data.formats.cells import Place
from agnosticfl.data.formats.tables import frame_table, open_table
from agnosticfl.data.loaders.arrays import from_frame, load
from agnosticfl.data.preparation.apply import joined, label_of, prepared_rows
from agnosticfl.data.preparation.fit import BLOCK, Plan, fit
from agnosticfl.data.preparation.record import (
    Category,
    Number,
    Preparation,
    from_json,
    to_json,
)
from agnosticfl.data.store import open_store, write_store
from agnosticfl.errors import BadInput

# Training ages 1, 3, 5 (one is missing), test ages 100 and missing.
ROWS: dict[str, list[Any]] = {
    "who": ["a", "a", "b", "b", "c", "c"],
    "land": ["u"] * 6,
    "age": [1.0, 3.0, None, 5.0, 100.0, None],
    "pain": ["typical", "none", "none", None, "odd", "typical"],
    "grade": [1, 2, 1, 2, 1, 7],
    "sick": ["no", "yes", "no", "yes", "no", "yes"],
    "part": ["train"] * 4 + ["test"] * 2,
}
ROLES: dict[str, Any] = {
    "client": "who",
    "domain": "land",
    "label": "sick",
    "split": "part",
    "categories": ["grade"],
}


def change(**columns: Any) -> dict[str, Any]:
    return {**ROWS, **columns}


def steps(frame: Any, **options: Any) -> Preparation:
    made = from_frame(frame, **(ROLES | options)).preparation
    assert made is not None
    return made


def test_numbers_categories_and_missing_values_by_hand() -> None:
    source = from_frame(ROWS, **ROLES)
    deviation = (8 / 3) ** 0.5  # of 1, 3 and 5
    assert source.preparation == Preparation(
        (
            Number("age", 3.0, deviation, 3.0, indicator=True),
            Category("pain", ("none", "typical", "(missing)")),
            Category("grade", ("1", "2")),
        ),
        steps(ROWS).label,
    )
    assert steps(ROWS).x_columns == (
        *("age", "age is missing"),
        *("pain=none", "pain=typical", "pain=(missing)", "grade=1", "grade=2"),
    )
    data = collect(source)
    s = np.float32(2 / deviation)
    assert data["train"].examples["x"].tolist() == [
        [-s, 0, 0, 1, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 1, 0],  # a missing age is the mean, and said
        [s, 0, 0, 0, 1, 0, 1],
    ]
    assert data["test"].examples["x"].tolist() == [
        [np.float32(97 / deviation), 0, 0, 0, 0, 1, 0],  # training never saw "odd"
        [0, 1, 0, 1, 0, 0, 0],  # nor grade 7
    ]
    assert data["train"].examples["y"].tolist() == [0, 1, 0, 1]
    assert source.notes[:2] == (
        "outside training, column 'pain': 1 row has the unknown category 'odd'",
        "outside training, column 'grade': 1 row has the unknown category '7'",
    )


def test_what_test_rows_hold_changes_nothing() -> None:
    wild = change(age=[1.0, 3.0, None, 5.0, -1e9, 7.0], pain=[*ROWS["pain"][:4], "x", "y"])
    assert steps(wild) == steps(ROWS)
    assert steps(change(age=[1.0, 3.0, None, 6.0, 100.0, None])) != steps(ROWS)


def csv_of(frame: dict[str, list[Any]], mark: str) -> str:
    rows = [
        [mark if v is None else str(v) for v in row] for row in zip(*frame.values(), strict=True)
    ]
    return "\n".join(",".join(row) for row in [list(frame), *rows]) + "\n"


@pytest.mark.parametrize("mark", ["", "?", "NA", "nan", " ? "])
def test_csv_parquet_and_frames_give_the_same_store(tmp_path: Path, mark: str) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "rows.csv").write_text(csv_of(ROWS, mark))
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    frame = pandas.DataFrame(ROWS)
    nullable = frame.convert_dtypes().astype({"pain": "category"})
    sources = [
        *(load([tmp_path / name], **ROLES) for name in ("rows.csv", "rows.parquet")),
        *(from_frame(some, **ROLES) for some in (ROWS, frame, nullable)),
    ]
    for number, source in enumerate(sources):
        write_store(source, tmp_path / str(number))
    assert len({open_store(tmp_path / str(n)).digest for n in range(len(sources))}) == 1


def test_new_rows_become_what_was_stored(tmp_path: Path) -> None:
    source = from_frame(ROWS, **ROLES)
    write_store(source, tmp_path / "s")
    store = open_store(tmp_path / "s")
    kept = store.preparation()
    assert kept == source.preparation
    assert kept is not None
    (tmp_path / "new.csv").write_text(csv_of(ROWS, "?"))
    (some,) = prepared_rows(kept, open_table(tmp_path / "new.csv"), also=["sick"])
    stored = [store.splits[split].examples for split in ("train", "test")]
    np.testing.assert_array_equal(some.features["x"], np.concatenate([e["x"] for e in stored]))
    y = label_of(kept, some.place, some.batch)
    assert y.tolist() == [0, 1, 0, 1, 0, 1]
    assert joined([some.notes, some.notes]).lines() == [
        "column 'grade': 2 rows have the unknown category '7'",
        "column 'pain': 2 rows have the unknown category 'odd'",
    ]


def test_new_rows_need_the_columns_of_the_features_only() -> None:
    made = steps(ROWS)
    frame = {name: ROWS[name] for name in ("grade", "age", "pain")} | {"more": [9] * 6}
    (some,) = prepared_rows(made, frame_table(frame))
    assert some.features["x"].shape == (6, 7)
    with pytest.raises(BadInput, match=r"'pain'.*\(allowed: grade, age, more\)"):
        next(prepared_rows(made, frame_table({k: v for k, v in frame.items() if k != "pain"})))


def test_a_value_missing_only_in_new_rows_is_the_mean_and_said() -> None:
    made = steps(change(age=[1, 3, 3, 5, 9, 9]))
    assert made.x_columns[:2] == ("age", "pain=none")  # no column for what never was
    frame = {"age": [None], "pain": ["none"], "grade": [1]}
    (some,) = prepared_rows(made, frame_table(pa.table(frame)))
    assert some.features["x"].tolist() == [[0, 1, 0, 0, 1, 0]]
    assert some.notes.lines() == [
        "column 'age': 1 row has no value, but no training row lacked one;"
        " the training mean stands for it"
    ]
    notes = from_frame(change(age=[1, 3, 3, 5, None, None]), **ROLES).notes
    assert "outside training, column 'age': 2 rows have no value" in notes[0]


def test_missing_values_can_be_refused_with_their_row() -> None:
    with pytest.raises(BadInput, match="row 2: column 'age' has no value; with missing = impute"):
        from_frame(ROWS, **ROLES, missing="refuse")
    with pytest.raises(BadInput, match="row 3: column 'pain' has no value"):
        from_frame(ROWS, **ROLES, features=["pain", "grade"], missing="refuse")
    made = steps(ROWS, features=["grade"], missing="refuse")
    with pytest.raises(BadInput, match="row 1: column 'grade' has no value"):
        list(prepared_rows(made, frame_table({"grade": ["1", "?"]})))


def test_a_column_without_a_training_value_is_left_out_aloud() -> None:
    source = from_frame(change(age=[None, None, None, None, 1.0, 2.0]), **ROLES)
    assert source.preparation is not None
    assert "age" not in source.preparation.x_columns
    assert "column 'age' has no value in any training row, so it is left out" in source.notes


def test_without_scaling_numbers_stay_and_a_constant_is_no_division_by_zero() -> None:
    plain = steps(ROWS, scale="none").columns[0]
    assert plain == Number("age", 0.0, 1.0, 3.0, indicator=True)
    constant = steps(change(age=[0.1] * 6)).columns[0]
    assert constant == Number("age", 0.1, 1.0, 0.1, indicator=False)


def test_mean_and_deviation_do_not_depend_on_how_the_stream_is_cut() -> None:
    values = np.random.default_rng(0).normal(1e6, 1e-3, 3 * BLOCK + 17)
    found: set[Any] = set()
    for size in (100, BLOCK, BLOCK + 1, len(values)):
        batches = [
            (Place("rows", 0), batch, np.ones(len(batch), bool))
            for batch in pa.table({"v": values}).to_batches(max_chunksize=size)
        ]
        found.add(fit(Plan("rows", (Number("v"),)), batches)[0])
    (made,) = found
    np.testing.assert_allclose(made.columns[0].mean, values.mean(), rtol=1e-13)
    np.testing.assert_allclose(made.columns[0].deviation, values.std(), rtol=1e-6)


def test_the_same_number_written_in_two_ways_is_one_category(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,land,kind,old\nx,u,1.0,true\ny,u,2.0,False\n")
    (tmp_path / "b.csv").write_text("who,land,kind,old\nx,u,1,True\nz,u,10,false\n")
    source = load([tmp_path / "a.csv", tmp_path / "b.csv"], client="who", domain="land",
                  categories="kind", scale="none")  # fmt: skip
    assert source.preparation is not None
    assert source.preparation.columns[0] == Category("kind", ("1", "2", "10"))
    assert collect(source)["train"].examples["x"][:, -1].tolist() == [1, 1, 0, 0]


def label_source(values: Any, **options: Any) -> Any:
    rows = {"who": ["a"] * len(values), "land": ["u"] * len(values), "v": [1.0] * len(values)}
    return from_frame(rows | {"out": values}, client="who", domain="land", label="out", **options)


@pytest.mark.parametrize(
    ("values", "classes", "labels", "y"),
    [
        ([3.5, 1.0, 2.0], None, None, [3.5, 1, 2]),
        ([3, 1, 2], None, None, [3, 1, 2]),
        ([10, 9, 10], "each", ("9", "10"), [1, 0, 1]),
        ([1.0, 0.0, 1.0], None, ("0", "1"), [1, 0, 1]),
        ([1, 0, 1], "none", None, [1, 0, 1]),
        ([True, False, True], None, ("false", "true"), [1, 0, 1]),
        (["b", "a", "b"], None, ("a", "b"), [1, 0, 1]),
        (["b", "a", "b"], "b,a,c", ("b", "a", "c"), [0, 1, 0]),
        (["b", "a", "b"], ["b", "a"], ("b", "a"), [0, 1, 0]),
        ([3, 0, 1], ">0", ("out <= 0", "out > 0"), [1, 0, 1]),
        ([140, 139.5, 2], ">=140", ("out < 140", "out >= 140"), [1, 0, 0]),
        ([3, 0, 1], "< 1", ("out >= 1", "out < 1"), [0, 1, 0]),
    ],
)
def test_kinds_of_labels_in_frames_and_in_csv(
    tmp_path: Path, values: Any, classes: Any, labels: Any, y: Any
) -> None:
    (tmp_path / "rows.csv").write_text(
        "who,land,v,out\n" + "".join(f"a,u,1,{value}\n" for value in values)
    )
    roles: dict[str, Any] = {"client": "who", "domain": "land", "label": "out"}
    for source in (
        label_source(values, classes=classes),
        load([tmp_path / "rows.csv"], **roles, classes=classes),
    ):
        assert source.labels == labels
        found = collect(source)["train"].examples["y"]
        assert found.tolist() == y
        assert found.dtype == (np.float32 if labels is None else np.int32)


def test_labels_that_are_said_aloud() -> None:
    assert "has only the values 0 and 1" in label_source([0, 1]).notes[0]
    one = label_source(["a", "a"]).notes
    assert any("all training rows are of one class of 'out'" in note for note in one)
    unseen = label_source(["a", "b"], classes="a,b,c").notes
    assert "no training row is of the class 'c' of 'out'" in unseen


@pytest.mark.parametrize(
    ("values", "classes", "message"),
    [
        (["a", "b"], "none", r"label 'out' is to be a number, but has \(the arrays, row 0: 'a'"),
        (["1", "b"], ">0", "is to be a number, but has .*row 1: 'b'"),
        ([1, 2], "> many", "'> many' is no threshold; write it as >0"),
        (["a", "b"], "a,c", "row 1: column 'out' has 'b', no class .*allowed: 'a, c'"),
        (["a", "b"], "a", "give each, none, a threshold"),
        ([1.0, float("nan")], None, "row 1: column 'out' has no value, but it is the label"),
        ([1.0, float("inf")], "none", "row 1: column 'out' has inf"),
    ],
)
def test_labels_that_cannot_be(values: Any, classes: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        label_source(values, classes=classes)
    assert "\n" not in str(caught.value)


def test_texts_that_are_no_categories_are_refused_with_what_to_do() -> None:
    many: dict[str, Any] = {
        "who": ["a"] * 150,
        "land": ["u"] * 150,
        "text": [f"t{i}" for i in range(150)],
        "age": ["old", *map(str, range(149))],
        "v": [1] * 150,
    }
    roles: dict[str, Any] = {"client": "who", "domain": "land"}
    with pytest.raises(BadInput, match=r"'text' has 150 different texts in 150 rows .*insist"):
        from_frame(many, **roles, features="text,v")
    with pytest.raises(BadInput, match=r"row 0: column 'age' has 'old', which is no number"):
        from_frame(many, **roles, features="age,v")
    insisted = from_frame(many, **roles, features="text,v", categories="text")
    assert insisted.features["x"].shape == (151,)
    some = {name: column[:25] for name, column in many.items()}
    with pytest.raises(BadInput, match="'text' has 25 different texts in 25 rows"):
        from_frame(some, **roles, features="text,v")


def test_numbers_and_texts_in_one_column_are_categories_and_said(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("who,land,age\na,u,1\nb,u,old\n")
    source = load([tmp_path / "rows.csv"], client="who", domain="land")
    assert source.preparation is not None
    assert source.preparation.x_columns == ("age=1", "age=old")
    assert "row 1: column 'age' has 'old', so its column is taken for categories" in source.notes[0]


def test_the_input_is_a_column_of_lists_and_is_called_x() -> None:
    frame = {
        "who": np.array([1, 2]),
        "land": np.array([0, 0]),
        "pixels": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        "writer_age": np.array([3.0, 4.0]),
    }
    roles: dict[str, Any] = {"client": "who", "domain": "land"}
    source = from_frame(frame, **roles, input="pixels")
    assert {name: tuple(f) for name, f in source.features.items()} == {"x": ("uint8", (2, 2))}
    assert collect(source)["train"].examples["x"].tolist() == frame["pixels"].tolist()
    text = from_frame(frame | {"tokens": np.ones((2, 5), int)}, **roles, input="tokens")
    assert {name: tuple(f) for name, f in text.features.items()} == {"tokens": ("int32", (5,))}
    named = from_frame(frame, **roles, features=["pixels"])
    assert any("say which one it is, input = pixels" in note for note in named.notes)
    for options, message in [
        (
            {"input": "pixels", "features": "pixels,writer_age"},
            "holds lists and a feature is called",
        ),
        ({"input": "writer_age"}, "it is for a column of lists"),
        ({"input": "pixels", "features": "writer_age"}, "is not among the features"),
    ]:
        with pytest.raises(BadInput, match=message):
            from_frame(frame, **roles, **options)
    assert source.preparation is not None
    with pytest.raises(BadInput, match=r"has \[3\] numbers a row; the training rows had uint8"):
        list(prepared_rows(source.preparation, frame_table({"pixels": np.zeros((1, 3))})))
    new = np.array([[[1, 2], [3, 4]], [[1, 2], [3, 400]]])
    with pytest.raises(BadInput, match="row 1: column 'pixels' does not fit"):
        list(prepared_rows(source.preparation, frame_table({"pixels": new})))


def test_what_was_learnt_survives_as_json() -> None:
    made = steps(ROWS)
    assert from_json(json.loads(json.dumps(to_json(made))), "here") == made
    raw = to_json(made)
    for damaged in ({}, raw | {"columns": [{"kind": "other"}]}, raw | {"label": {"name": "a"}}):
        with pytest.raises(BadInput, match="here does not say how rows are prepared"):
            from_json(damaged, "here")


def test_split_frame_says_what_is_odd_and_keeps_what_was_learnt() -> None:
    with pytest.warns(UserWarning, match="unknown category|very few rows") as said:
        splits = split_frame(ROWS, **ROLES, licence="CC0")
    assert "unknown category 'odd'" in str(said[0].message)
    assert said[0].filename == __file__  # where somebody called it
    assert splits.about.licence == "CC0"
    assert splits.about.labels == ("no", "yes")
    assert splits.about.preparation == to_json(steps(ROWS))
