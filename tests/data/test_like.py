# SPDX-License-Identifier: Apache-2.0
"""A table prepared as another one was: nothing is learnt from its own rows."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.data.collect import collect, split_frame
from agnosticfl.data.loaders.arrays import from_frame, load
from agnosticfl.data.preparation.record import read_preparation, to_json
from agnosticfl.data.source import Source
from agnosticfl.data.store import check_store, open_store, write_store
from agnosticfl.errors import BadInput

AGREED = """\
who,house,age,pain,ill
a,north,40,none,sick
b,north,50,typical,healthy
c,south,60,none,sick
d,south,,odd,healthy
"""
OWN = """\
ill,house,pain,who,age,ward
healthy,east,typical,e,70,7
healthy,east,none,f,80,8
"""
ROLES: dict[str, Any] = {"client": "who", "domain": "house"}


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    """The store of those who agreed; its classes are numbered against the alphabet."""
    (tmp_path / "agreed.csv").write_text(AGREED)
    source = load([tmp_path / "agreed.csv"], **ROLES, label="ill", classes="sick,healthy")
    write_store(source, tmp_path / "agreed")
    return tmp_path / "agreed"


def own(folder: Path, like: Path, text: str = OWN, **options: Any) -> Source:
    (folder / "own.csv").write_text(text)
    return load([folder / "own.csv"], **(ROLES | {"like": str(like)} | options))


def test_one_class_and_other_columns_give_the_same_numbers(tmp_path: Path, agreed: Path):
    """By its own rows, this hospital would have numbered healthy as 0 and scaled by its own age."""
    source = own(tmp_path, agreed)
    assert source.preparation == open_store(agreed).preparation()
    assert source.features == open_store(agreed).meta.features
    assert source.labels == ("sick", "healthy")
    assert source.domains == ("east",)
    data = collect(source)["train"].examples
    deviation = np.sqrt(200 / 3)  # of 40, 50 and 60
    ages = np.array([20, 30]) / deviation
    expected = [[ages[0], 0, 0, 0, 1], [ages[1], 0, 1, 0, 0]]  # age, is missing, none, odd, typical
    np.testing.assert_allclose(data["x"], expected, rtol=1e-6)
    assert data["y"].tolist() == [1, 1]


def test_the_same_rows_become_the_same_store(tmp_path: Path, agreed: Path):
    write_store(own(tmp_path, agreed, AGREED), tmp_path / "again")
    assert open_store(tmp_path / "again").digest == open_store(agreed).digest
    assert check_store(tmp_path / "again") == []


def test_a_folder_or_a_file_can_be_named(tmp_path: Path, agreed: Path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "preparation.json").write_bytes((agreed / "preparation.json").read_bytes())
    made = [own(tmp_path, like).preparation for like in (agreed, app, app / "preparation.json")]
    assert made == [read_preparation(agreed)] * 3


def test_another_unit_is_asked_about(tmp_path: Path, agreed: Path):
    def asked(text: str) -> list[str]:
        return [note for note in own(tmp_path, agreed, text).notes if "same unit" in note]

    assert asked(OWN) == []
    assert asked(OWN.replace(",70,", ",840,").replace(",80,", ",960,")) == [
        "column 'age': the mean of these rows is 104 agreed deviations from the agreed mean, 50;"
        " is it in the same unit?"
    ]


def test_splits_and_clients_are_one_s_own(tmp_path: Path, agreed: Path):
    text = OWN + "".join(f"sick,west,none,{k},{k},9\n" for k in range(40))
    source = own(tmp_path, agreed, text, split_by="rows", test_fraction=0.5, client="@row")
    parts = collect(source)
    assert set(parts) == {"train", "test"}
    assert source.domains == ("east", "west")
    assert source.preparation == read_preparation(agreed)


def test_what_is_unknown_is_said_with_counts(tmp_path: Path, agreed: Path):
    rows = "".join(f"sick,east,{pain},g{k},,9\n" for k, pain in enumerate(["new", "new", "b"]))
    source = own(tmp_path, agreed, OWN + rows)
    assert source.notes[:2] == (
        "column 'pain': 1 row has the unknown category 'b'",
        "column 'pain': 2 rows have the unknown category 'new'",
    )
    many = OWN + "".join(f"sick,east,new{k},g{k},1,9\n" for k in range(9))
    assert "column 'pain': and 4 more unknown categories" in own(tmp_path, agreed, many).notes
    rows: Any = {"who": ["a", "b"], "house": ["n"] * 2, "age": [1.0, 2.0], "pain": ["new", "none"]}
    rows |= {"ill": ["sick", "sick"], "part": ["train", "test"]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        split_frame(rows, **ROLES, split="part", like=agreed)
    assert str(said[0].message) == "column 'pain': 1 row has the unknown category 'new'"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (OWN + "dead,east,none,g,1,1\n", {}, r"row 2: column 'ill' has 'dead', no class"),
        (OWN.replace("pain", "ache"), {}, r"unknown column of .*own.csv 'pain'"),
        (OWN.replace("ill,", "state,"), {}, r"unknown column of .*own.csv 'ill'"),
        (OWN.replace("80", "old"), {}, r"row 1: column 'age' has 'old'"),
        (OWN, {"features": "pain,age"}, "features is pain,age, but in .* it is age,pain"),
        (OWN, {"features": "age"}, "features is age, but in .* it is age,pain"),
        (OWN, {"categories": "age"}, "categories is age, but in .* it is pain"),
        (OWN, {"label": "pain"}, "label is pain, but in .* it is ill"),
        (OWN, {"classes": "healthy,sick"}, "classes is healthy,sick, .* it is sick,healthy"),
        (OWN, {"classes": "none"}, "classes is none, but in .* it is sick,healthy"),
        (OWN, {"classes": ">0"}, "classes is >0, but in .* it is sick,healthy"),
        (OWN, {"scale": "none"}, "scale is none, but in .* it is standard"),
        (OWN, {"missing": "refuse"}, "missing is refuse, but in .* it is impute"),
        (OWN, {"input": "age"}, "input is age, but in .* it is none"),
        (OWN, {"split": "pain"}, "split is 'pain', which is a feature"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, agreed: Path, text: str, options: dict[str, Any], message: str
):
    with pytest.raises(BadInput, match=message) as caught:
        own(tmp_path, agreed, text, **options)
    assert "\n" not in str(caught.value)


def test_the_same_said_twice_is_no_contradiction(tmp_path: Path, agreed: Path):
    options: Any = {"features": "age,pain", "categories": "pain", "label": "ill"}
    assert own(tmp_path, agreed, **options, classes="sick,healthy").labels == ("sick", "healthy")
    assert own(tmp_path, agreed, classes="each").labels == ("sick", "healthy")


def test_thresholds_numbers_and_tables_without_a_label(tmp_path: Path):
    rows: dict[str, Any] = {"who": ["a", "b", "c"], "house": ["n"] * 3, "age": [1.0, 2.0, 9.0]}
    rows["num"] = [0, 0, 3]
    healthy = {name: values[:2] for name, values in rows.items()}
    for options in ({"label": "num", "classes": ">0"}, {"label": "num"}, {"features": "age"}):
        first = from_frame(rows, **ROLES, **options, scale="none")
        write_store(first, tmp_path / "s", overwrite=True)
        again = from_frame(healthy, **ROLES, like=str(tmp_path / "s"), **options)
        assert (again.preparation, again.labels) == (first.preparation, first.labels)
    images = {**{k: rows[k] for k in ("who", "house")}, "pixels": np.zeros((3, 2, 2), np.uint8)}
    write_store(from_frame(images, **ROLES, input="pixels"), tmp_path / "images")
    again = from_frame(images, **ROLES, input="pixels", like=tmp_path / "images")
    assert again.features["x"].shape == (2, 2)
    wide = images | {"pixels": np.zeros((3, 2, 3), np.uint8)}
    with pytest.raises(BadInput, match=r"has \[2, 3\] numbers a row"):
        from_frame(wide, **ROLES, like=tmp_path / "images")


def test_a_store_that_no_table_made_has_nothing_to_offer(tmp_path: Path, agreed: Path):
    (agreed / "preparation.json").unlink()
    with pytest.raises(BadInput, match=r"there is no .*preparation.json, which would say"):
        own(tmp_path, agreed)
    with pytest.raises(BadInput, match=r"there is no .*nowhere, which would say"):
        own(tmp_path, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw | {"columns": []},
        lambda raw: raw | {"columns": raw["columns"] * 2},
        lambda raw: raw | {"missing": "ignore"},
        lambda raw: raw | {"missing": []},
        lambda raw: raw | {"label": {"name": "ill", "classes": ["a", "a"]}},
        lambda raw: raw | {"label": {"name": "ill", "classes": []}},
        lambda raw: raw | {"label": {"name": "ill", "classes": ["a", "b"], "threshold": "big"}},
        lambda raw: raw | {"label": {"name": "ill", "classes": None, "threshold": ">0"}},
        lambda raw: raw | {"columns": [raw["columns"][0] | {"deviation": 0.0}]},
        lambda raw: raw | {"columns": [raw["columns"][0] | {"mean": "53"}]},
        lambda raw: raw | {"columns": [raw["columns"][0] | {"mean": float("nan")}]},
        lambda raw: raw | {"columns": [raw["columns"][0] | {"unit": "years"}]},
        lambda raw: raw | {"columns": [raw["columns"][1] | {"categories": ["a", 3]}]},
        lambda raw: raw | {"columns": [raw["columns"][1] | {"categories": []}]},
        lambda raw: raw | {"columns": [raw["columns"][1] | {"kind": "x\ny" * 999}]},
        lambda raw: raw | {"columns": [{"kind": "array", "name": "a", "feature": "x"}]},
        lambda raw: raw["columns"],
        lambda _: None,
    ],
)
def test_a_damaged_preparation_is_one_line(tmp_path: Path, agreed: Path, change: Any):
    file = agreed / "preparation.json"
    file.write_text(json.dumps(change(to_json(read_preparation(agreed)))))
    with pytest.raises(BadInput, match="does not say how rows are prepared") as caught:
        own(tmp_path, file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_file_of_brackets_is_one_line(tmp_path: Path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match=r"deep.json cannot be read"):
        own(tmp_path, tmp_path / "deep.json")
