# SPDX-License-Identifier: Apache-2.0
"""Text files as people have them: headers, delimiters, quotes, blanks, damage."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.data.collect import collect
from agnosticfl.data.loaders.arrays import load
from agnosticfl.errors import BadInput

ROLES: dict[str, Any] = {"client": "who", "domain": "land", "scale": "none"}


def columns(file: Path, text: str | bytes, **options: Any) -> dict[str, list[Any]]:
    """Columns of `x` -> their values."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    source = load([file], **ROLES, **options)
    assert source.preparation is not None
    x = collect(source)["train"].examples["x"].T.tolist()
    return dict(zip(source.preparation.x_columns, x, strict=True))


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("r.csv", "who,land,age\na,u,1\nb,u,2\n", {}),
        ("r.csv", "\ufeffwho , land,age\r\na , u,1\r\n\r\nb,u, 2\r\n", {}),
        ("r.csv", "who;land;age\na;u;1\nb;u;2\n", {}),
        ("r.tsv", "who\tland\tage\na\tu\t1\nb\tu\t2\n", {}),
        ("r.txt", "who\tland\tage\na\tu\t1\nb\tu\t2", {}),
        ("r.data", "a,u,1\nb,u,2\n", {"names": "who,land,age"}),
        ("r.data", "a,u,1\nb,u,2\n", {"names": ["who", "land", "age"]}),
        ("r.txt", "a|u|1\nb|u|2\n", {"names": "who, land, age", "delimiter": "|"}),
        ("r.csv", "who\tland\tage\na\tu\t1\nb\tu\t2\n", {"delimiter": "tab"}),
        ("R.TSV.GZ", gzip.compress(b"who\tland\tage\na\tu\t1\nb\tu\t2\n", mtime=0), {}),
    ],
)
def test_forms_of_text(tmp_path: Path, name: str, text: str | bytes, options: Any) -> None:
    assert columns(tmp_path / name, text, **options) == {"age": [1, 2]}


def test_quoted_commas_and_blanks_around_values(tmp_path: Path) -> None:
    text = 'who,land,pay\na,u,"<=50K, or so"\nb,u, >50K \nc,u,>50K\n'
    assert columns(tmp_path / "r.csv", text) == {
        "pay=<=50K, or so": [1, 0, 0],
        "pay=>50K": [0, 1, 1],
    }


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("who,land,age\na,u,1,9\n", {}, "Row #2: Expected 3 columns, got 4"),
        ("who,land,age\na,u,1\n", {"names": "who,land,age"}, "first row looks like names of col"),
        ("p,q,r\na,u,1\n", {"names": "who,land,age"}, "first row looks like names of columns"),
        ("a,u,1\n", {"names": "who,land"}, "2 names are given, but the first row has 3 fields"),
        ("a;u;1,5\n", {"names": "who,land,age"}, r"\(delimiter ','\): 3 names .* has 2 fields"),
        ("a,u,1\n", {"names": "who,who,age"}, "several columns are called who"),
        ("who,land,age\na,u,1\n", {"delimiter": "::"}, "delimiter is '::'; it must be one"),
        ("who,land,age\na,u,1\n", {"features": "agee"}, "did you mean 'age'"),
        ("who,land,age\na,u,1\n", {"features": "age,age"}, "features has age twice"),
        ("who,land,age\na,u,1\n", {"label": "age", "features": "age"}, "is the label or the split"),
        ("who,land,age\na,u,1\n", {"categories": "who"}, "is not among the features"),
        ("who,land,age\na,u,1\n", {"classes": "each"}, "but there is no label"),
        ("who,land,age\na,?,1\n", {}, "row 0: column 'land' has no value"),
        ("who,land,age,s\na,u,1,test\n", {"split": "s"}, "there is no training row"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, options: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        columns(tmp_path / "r.csv", text, **options)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_is_one_line(tmp_path: Path) -> None:
    packed = gzip.compress(("who,land,age\n" + "a,u,1\n" * 9999).encode())
    for damaged in (packed[:-9], packed[:20] + b"\xff" * 20 + packed[40:], b"no gzip"):
        with pytest.raises(BadInput, match=r"r\.csv\.gz: ") as caught:
            columns(tmp_path / "r.csv.gz", damaged)
        assert "\n" not in str(caught.value)


def test_names_are_for_text_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="names are for text files"):
        load([tmp_path / "r.parquet"], **ROLES, names="who,land,age")
