# SPDX-License-Identifier: Apache-2.0
"""Anyone's own tables: the same four rows in every form give the same data set."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.core.federated import FederatedData
from agnosticfl.data.collect import collect
from agnosticfl.data.loaders.arrays import from_frame, load
from agnosticfl.errors import BadInput

ROWS: dict[str, list[Any]] = {
    "who": ["bo", "al", "bo", "cy"],
    "land": ["us", "ar", "us", "ar"],
    "age": [1, 2, 3, 4],
    "pay": [0.5, 1.5, 2.5, 3.5],
    "kind": ["dog", "cat", "cat", "dog"],
    "part": ["train", "train", "train", "test"],
}
ROLES: dict[str, Any] = {"client": "who", "domain": "land", "label": "kind", "split": "part"}
PLAIN: dict[str, Any] = {"scale": "none"}  # so that a reader sees the numbers again


def csv_text() -> str:
    lines = [",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True)]
    return "\n".join([",".join(ROWS), *lines, ""])


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table(ROWS), folder / "rows.parquet")
    return folder / "rows.parquet"


def csv(folder: Path) -> Path:
    (folder / "rows.csv").write_text(csv_text(), encoding="utf-8-sig")  # with a BOM
    return folder / "rows.csv"


def csv_gz(folder: Path) -> Path:
    (folder / "rows.csv.gz").write_bytes(gzip.compress(csv_text().encode()))
    return folder / "rows.csv.gz"


def npz(folder: Path) -> Path:
    arrays: dict[str, Any] = {name: np.array(values) for name, values in ROWS.items()}
    np.savez(folder / "rows.npz", **arrays)
    return folder / "rows.npz"


def pandas_frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def dataset() -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(ROWS)


FILES = [parquet, csv, csv_gz, npz]
FRAMES: list[Callable[[], Any]] = [lambda: ROWS, pandas_frame, polars_frame, dataset]


@pytest.mark.parametrize("make", [*FILES, *FRAMES])
def test_every_form_gives_the_same_data(make: Callable[..., Any], tmp_path: Path) -> None:
    options = ROLES | PLAIN
    source = load([make(tmp_path)], **options) if make in FILES else from_frame(make(), **options)
    assert source.domains == ("ar", "us")
    assert source.labels == ("cat", "dog")
    data = collect(source)
    train, test = data["train"], data["test"]
    assert list(train.client_ids) == ["al", "bo"]
    assert list(test.client_ids) == ["cy"]
    assert train.domain.tolist() == [0, 1, 1]
    assert train.examples["x"].tolist() == [[2, 1.5], [1, 0.5], [3, 2.5]]
    assert train.examples["x"].dtype == np.float32
    assert train.examples["y"].tolist() == [0, 1, 0]
    assert train.examples["y"].dtype == np.int32


def test_a_rearranged_dataset_is_read_as_it_is_shown() -> None:
    rows = dataset().select([1, 3])
    source = from_frame(rows, client="who", domain="kind", features=["age"], **PLAIN)
    assert collect(source)["train"].examples["x"].tolist() == [[2], [4]]


def test_a_dataset_keeps_the_names_of_its_classes() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.ClassLabel(names=["dog", "cat"])
    rows = dataset().cast_column("kind", kinds)
    source = from_frame(rows, **ROLES)
    assert source.labels == ("cat", "dog")
    assert collect(source)["train"].examples["y"].tolist() == [0, 1, 0]


def test_half_and_decimal_numbers_are_numbers() -> None:
    pay = pa.array([0.5, 1.5, 2.5, 3.5]).cast(pa.decimal128(3, 1))
    for column in (pay, np.array([0.5, 1.5, 2.5, 3.5], np.float16)):
        frame = pa.table({**ROWS, "pay": column})
        data = collect(from_frame(frame, **ROLES, **PLAIN))
        assert data["train"].examples["x"].tolist() == [[2, 1.5], [1, 0.5], [3, 2.5]]


def test_several_files_are_one_table(tmp_path: Path) -> None:
    data = collect(load([csv(tmp_path), parquet(tmp_path)], **ROLES))
    assert data["train"].sizes.tolist() == [2, 4]


def test_lists_stay_features_and_numbers_get_32_bits() -> None:
    frame = {
        "who": np.array([7, 8]),
        "land": np.array([10, 9]),
        "image": np.arange(8.0).reshape(2, 2, 2),
        "tokens": np.array([[1, 2, 3], [4, 5, 6]]),
        "flag": np.array([True, False]),
        "y": np.array([5, -1]),
    }
    source = from_frame(frame, client="who", domain="land", label="y", classes="each", **PLAIN)
    assert source.domains == ("9", "10")  # as numbers, not as texts
    assert source.labels == ("-1", "5")
    assert {name: tuple(feature) for name, feature in source.features.items()} == {
        "image": ("float32", (2, 2)),
        "tokens": ("int32", (3,)),
        "x": ("float32", (1,)),
        "y": ("int32", ()),
    }
    train = collect(source)["train"]
    assert train.examples["image"].tolist() == frame["image"].tolist()
    assert train.examples["x"].tolist() == [[1], [0]]
    assert train.examples["y"].tolist() == [1, 0]


def test_lists_of_any_arrow_type() -> None:
    lists = pa.array([[[1], [2]], [[3], [4]]], pa.large_list(pa.list_(pa.int16())))
    table = pa.table({"who": ["a", "b"], "land": ["u", "v"], "x": lists})
    source = from_frame(table.slice(1), client="who", domain="land")
    assert collect(source)["train"].examples["x"].tolist() == [[[3], [4]]]


def test_fractions_choose_clients_not_rows() -> None:
    clients = np.repeat(np.arange(1000), 3)
    frame = {"who": clients, "land": np.zeros(3000, int), "x": np.zeros(3000)}
    roles: dict[str, Any] = {"client": "who", "domain": "land"}
    source = from_frame(frame, **roles, test_fraction=0.2, heldout_fraction=0.1)
    data = collect(source)
    ids = {split: set(part.client_ids) for split, part in data.items()}
    assert sum(len(some) for some in ids.values()) == 1000  # nobody is in two splits
    np.testing.assert_allclose([len(ids["test"]), len(ids["heldout"])], [200, 100], atol=40)
    assert all((part.sizes == 3).all() for part in data.values())
    other = collect(from_frame(frame, **roles, test_fraction=0.2, heldout_fraction=0.1, seed=1))
    assert set(other["test"].client_ids) != ids["test"]


def change(**columns: Any) -> dict[str, Any]:
    return {**ROWS, **columns}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (change(pay=[1, np.inf, 2, 3]), "row 1: column 'pay' has inf, which is no finite float32"),
        (change(pay=[1, 2, 1e300, 3]), "row 2: column 'pay' has 1e.300"),
        (change(pay=np.array(["2020-01-01"] * 4, "datetime64[D]")), "'pay' is of type date32"),
        (change(kind=["dog", "", "cat", "dog"]), "row 1: column 'kind' has no value, but it is"),
        (change(land=["us", "?", "us", "ar"]), "row 1: column 'land' has no value"),
        (change(pay=np.array([[1], [2], [3], [2**40]])), "row 3: column 'pay' has 1099511627776"),
        (change(who=[1.0, 2.0, 3.0, 4.0]), "column 'who' is of type double"),
        (change(who=["a", "b", "", "c"]), "row 2: column 'who' has no value"),
        (change(part=["train", "dev", "train", "test"]), "row 1: column 'part' is 'dev' .*train"),
        (change(land=["us", "ar", "us"]), "named land expected length 4 but got length 3"),
        (change(y=np.zeros((4, 2))), "a feature is called 'y'"),
        (change(x=np.zeros((4, 2))), "column 'x' holds lists"),
        ({name: [] for name in ROWS}, "there are no examples"),
        ({}, "unknown column of the arrays 'who'"),
        (pa.table({**ROWS, "pay": [[1], [2], [3], [4, 5]]}), "row 3: .* a list of 2 values, not 1"),
        (pa.table({**ROWS, "pay": [[1], None, [3], [4]]}), "row 1: .* a list of 0 values, not 1"),
        (pa.table({**ROWS, "pay": [{"a": 1}] * 4}), "column 'pay' is of type struct"),
        (3, "cannot read columns from int"),
    ],
)
def test_bad_frames_are_refused(frame: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        collect(from_frame(frame, **ROLES))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Empty CSV"),
        (b"who,land,age\n", "no examples"),
        (b"who,land\na,u\n", "no column left"),
        (b"name,land,age\na,u,1\n", "unknown column of .*rows.csv 'who'"),
        (b"who,land,age,age\na,u,1,2\n", "several columns are called age"),
        (b"who,land,age\na,u,1\nb,u,-inf\n", "row 1: column 'age' has -inf, which is no finite"),
        (b"who,land,age\na,u,\nb,u,?\n", "no column has a value in any training row"),
        (b"1,1,2\n3,4,5\n", "several columns are called 1; give names if the file has no header"),
        (b"1,7,2\n3,4,5\n", "has no column 'who'; its first row looks like values, not names"),
        (b"who,land,age\na,u,1\n,u,2\n", "row 1: column 'who' has no value"),
        (b"who,land,age\na,u,1\nb,u\n", "Row #3: Expected 3 columns, got 2"),
        (b"who,land,age\na,u,1\nb\xff,u,2\n", "Row #3: .*invalid UTF8"),
        ("who,land,age\na,u,1\n".encode("utf-16"), "rows.csv"),
    ],
)
def test_bad_csv_is_refused_by_file_and_row(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "rows.csv").write_bytes(text)
    with pytest.raises(BadInput, match=message) as caught:
        collect(load([tmp_path / "rows.csv"], client="who", domain="land"))
    assert "rows.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_with_blanks_and_names_like_na_are_fine(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("who, land ,age\r\nNA, u, 1.5 \r\nnull,u,2\r\n")
    train = collect(load([tmp_path / "rows.csv"], client="who", domain="land", **PLAIN))["train"]
    assert train.domains == ("u",)
    assert list(train.client_ids) == ["NA", "null"]
    assert train.examples["x"].tolist() == [[1.5], [2]]


def read_or_refuse(file: Path, **roles: Any) -> dict[str, FederatedData] | None:
    """The data, or None if the file was refused in one line."""
    try:
        return collect(load([file], **roles))
    except BadInput as error:
        one_line = "\n" not in str(error)
    assert one_line
    return None


@pytest.mark.parametrize("make", FILES)
def test_truncated_files_are_bad_input_or_shorter(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = make(tmp_path)
    whole = file.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        file.write_bytes(whole[:length])
        data = read_or_refuse(file, **ROLES)
        assert data is None or (make is csv and data["train"].num_examples <= 3)


@given(st.binary(max_size=60), st.sampled_from([".csv", ".tsv.gz", ".npz", ".parquet"]))
def test_any_bytes_are_bad_input_or_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str
) -> None:
    file = tmp_path_factory.mktemp("any") / f"rows{ending}"
    file.write_bytes(b"who,land,age\n" * (ending == ".csv") + content)
    read_or_refuse(file, client="who", domain="land")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agnosticfl.data.formats.tables.BOMB", (10_000, 10))
    np.savez_compressed(tmp_path / "rows.npz", who=np.zeros(100_000, int))
    with pytest.raises(BadInput, match=r"would unpack to 8\d{5} bytes.*a zip bomb\?"):
        load([tmp_path / "rows.npz"], **ROLES)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown ending \(allowed: .parquet, .npz, .csv"):
        load([tmp_path / "rows.xlsx"], **ROLES)
    with pytest.raises(BadInput, match="does not exist"):
        load([tmp_path / "rows.csv"], **ROLES)
    with pytest.raises(BadInput, match="no file was given"):
        load([], **ROLES)
    with pytest.raises(BadInput, match="not both"):
        from_frame(ROWS, **ROLES, test_fraction=0.5)
    with pytest.raises(BadInput, match="their sum below 1"):
        from_frame(ROWS, client="who", domain="land", test_fraction=1.0)
    np.savez(tmp_path / "rows.npz", who=np.array([{"pickled": 1}], object))
    with pytest.raises(BadInput, match="allow_pickle"):
        load([tmp_path / "rows.npz"], **ROLES)
    for option, value in [("missing", "drop"), ("scale", "minmax"), ("split_by", "row")]:
        with pytest.raises(BadInput, match=f"unknown {option} '{value}'"):
            from_frame(ROWS, **(ROLES | {option: value}))
    with pytest.raises(BadInput, match="rows_per_client is 0; it must be at least 1"):
        from_frame(ROWS, domain="land", rows_per_client=0)
    with pytest.raises(BadInput, match="did you mean 'who'"):
        from_frame(ROWS, client="whom", domain="land")


def test_an_index_without_a_name_is_nothing_to_learn_from():
    """What `pd.concat` leaves: Arrow would make a column of it."""
    half = pd.DataFrame({"who": ["a", "b"], "where": ["c", "c"], "v": [1.0, 2.0]})
    frame = pd.concat([half, half.assign(who=["d", "e"])])
    source = from_frame(frame, client="who", domain="where")
    assert source.preparation is not None
    assert source.preparation.x_columns == ("v",)
