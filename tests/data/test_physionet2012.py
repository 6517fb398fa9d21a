# SPDX-License-Identifier: Apache-2.0
"""Stays in intensive care: synthetic ones in the challenge's format, counts of the real ones."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.data.formats.icu_stays import SERIES
from agnosticfl.data.loaders.physionet2012 import DOMAINS, load
from agnosticfl.data.preparation.record import to_json
from agnosticfl.data.source import Source
from tests.data.image_files import Examples, collect
from tests.data.real import real_data
from tests.data.texts import one_line, refusal

HEADER = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"


def stay(record: int, unit: int = 1, *lines: str, age: int = 60, height: float = 170) -> str:
    described = {"RecordID": record, "Age": age, "Gender": 1, "Height": height, "ICUType": unit}
    head = [f"00:00,{name},{value}" for name, value in described.items()]
    return "\n".join(["Time,Parameter,Value", *head, *lines, ""])


def outcomes(deaths: Mapping[int, int]) -> str:
    return "\n".join(
        [HEADER, *(f"{record},6,1,5,-1,{died}" for record, died in deaths.items()), ""]
    )


def challenge() -> dict[str, str]:
    """Two stays of each unit in each set; the even ones die. Heart rates tell the record."""
    files: dict[str, str] = {}
    for number, part in enumerate("abc"):
        records = [1000 * number + k for k in range(100, 108)]
        for record in records:
            text = stay(record, record % 4 + 1, f"00:10,HR,{record % 1000}", "01:00,Temp,37.0")
            files[f"set-{part}/{record}.txt"] = text
        files[f"Outcomes-{part}.txt"] = outcomes({r: int(r % 2 == 0) for r in records})
    return files


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def column(source: Source, part: Examples, name: str) -> np.ndarray:
    """The values of a column of `x`, not scaled any more."""
    steps = source.preparation
    assert steps is not None
    values = part.features["x"][:, steps.x_columns.index(name)].astype(float)
    known = {c.name: c for c in steps.columns}
    scaled: Any = known.get(name)
    return values if scaled is None else values * scaled.deviation + scaled.mean


def test_sets_are_splits_and_units_are_domains(tmp_path: Path):
    source = load([write(tmp_path, challenge())], stays_per_client=2)
    splits = collect(source)
    assert source.domains == DOMAINS
    assert source.labels == ("survived", "died")
    for split, start in (("train", 0), ("heldout", 1000), ("test", 2000)):
        part = splits[split]
        records = [start + k for k in range(100, 108)]
        assert part.domain == [DOMAINS[record % 4] for record in records]
        assert part.features["y"].tolist() == [int(record % 2 == 0) for record in records]
        np.testing.assert_allclose(column(source, part, "HR first"), [r - start for r in records])
        assert set(Counter(part.clients).values()) == {2}  # one client in each unit
    assert len({client for part in splits.values() for client in part.clients}) == 12


def test_what_is_made_of_a_series(tmp_path: Path):
    files = challenge()
    measured = (
        "00:07,HR,80",
        "02:00,HR,100",
        "05:00,HR,60",
        "06:00,MechVent,1",
        "07:00,MechVent,1",
    )
    files["set-a/100.txt"] = stay(100, 1, *measured, age=75)
    source = load([write(tmp_path, files)])
    train = collect(source)["train"]
    made = {
        name: column(source, train, name)[0]
        for name in ("HR first", "HR last", "HR mean", "HR minimum", "HR maximum", "HR count")
    }
    assert list(made.values()) == pytest.approx([80, 60, 80, 60, 100, 3], rel=1e-5)
    assert column(source, train, "MechVent count")[0] == pytest.approx(2)
    assert column(source, train, "Age")[0] == pytest.approx(75)
    assert column(source, train, "Unit=coronary").tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    # Temp was never measured in this stay: the others' mean stands for it, and a column says so.
    assert column(source, train, "Temp first is missing").tolist() == [1] + [0] * 7
    assert column(source, train, "Temp last")[0] == pytest.approx(37)
    assert column(source, train, "Temp count")[0] == pytest.approx(0, abs=1e-6)


def test_a_series_has_one_indicator_and_none_that_nobody_lacks(tmp_path: Path):
    files = challenge()
    files["set-a/101.txt"] = stay(101, 2, "00:10,K,4.1")
    source = load([write(tmp_path, files)])
    assert source.preparation is not None
    indicators = [n for n in source.preparation.x_columns if n.endswith("is missing")]
    assert indicators == ["HR first is missing", "K first is missing", "Temp first is missing"]
    # What no training stay has is left out, and said so.
    assert "Lactate first" not in source.preparation.x_columns
    assert any("'Lactate first' has no value in any training row" in note for note in source.notes)


def test_unknown_and_impossible_values_are_not_measured(tmp_path: Path):
    files = challenge()
    odd = ("00:00,Weight,-1", "01:00,pH,735", "01:00,pH,7.3", "02:00,,0", "03:00,DiasABP,-1")
    files["set-a/100.txt"] = stay(100, 1, *odd, height=-1)
    source = load([write(tmp_path, files)])
    train = collect(source)["train"]
    assert source.left_out == {
        "values that no body can have": 1,
        "values without a parameter's name": 1,
    }
    assert column(source, train, "pH maximum")[0] == pytest.approx(7.3)
    assert column(source, train, "pH count")[0] == pytest.approx(1)
    assert column(source, train, "Height is missing").tolist() == [1] + [0] * 7
    assert column(source, train, "Weight count").tolist() == [0] * 8


def test_an_archive_is_read_as_a_folder_is(tmp_path: Path):
    archive = tmp_path / "challenge.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        for name, text in challenge().items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    packed = collect(load([archive]))
    plain = collect(load([write(tmp_path / "folder", challenge())]))
    for split, part in packed.items():
        assert part.clients == plain[split].clients
        np.testing.assert_array_equal(part.features["x"], plain[split].features["x"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("set-a/100.txt", "", "must start with Time,Parameter,Value"),
        ("set-a/100.txt", stay(100, 5), "stay 100 of set-a: ICUType is 5, not 1 to 4"),
        ("set-a/100.txt", stay(101), "does not say RecordID 100"),
        ("set-a/100.txt", stay(100, 1, "00:10,HR,fast"), "line 7: 'HR' is 'fast'"),
        ("set-a/100.txt", stay(100, 1, "00:10,Mood,1"), "a parameter 'Mood', which is unknown"),
        ("set-a/100.txt", stay(100, 1, "00:10,HR,8é"), "no plain text at offset"),
        ("set-a/100.txt", stay(100)[:30], "line 2: 'Rec' is ''"),
        ("set-b/100.txt", stay(100), "stay 100 has no line in Outcomes-b.txt"),
        ("more/set-a/100.txt", stay(100), "stay 100 of set-a is there 2 times"),
        ("Outcomes-c.txt", outcomes({2100: 2}), "line 2: In-hospital_death is '2'"),
        ("Outcomes-c.txt", "RecordID\n", "it must start with RecordID,SAPS-I"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, reason: str):
    folder = write(tmp_path, {**challenge(), name: text})
    assert reason in one_line(lambda: load([folder]))


def test_what_holds_no_stay_is_refused(tmp_path: Path):
    assert "no file set-a/NUMBER.txt" in one_line(lambda: load([tmp_path]))
    assert "does not exist" in str(refusal(lambda: load([tmp_path / "nowhere"])))


@pytest.mark.slow
def test_real_stays_have_the_published_counts():
    source = load([real_data("physionet2012") / "physionet2012.tar.xz"])
    splits = collect(source)
    deaths = {split: int(part.features["y"].sum()) for split, part in splits.items()}
    assert deaths == {"train": 554, "heldout": 568, "test": 585}
    train = splits["train"]
    assert Counter(train.domain) == dict(zip(DOMAINS, (577, 874, 1481, 1068), strict=True))
    died = np.array(train.domain)[train.features["y"] == 1]
    shares = [np.sum(died == name) / train.domain.count(name) for name in DOMAINS]
    np.testing.assert_allclose(shares, [0.140, 0.049, 0.186, 0.145], atol=5e-4)
    assert len(set(train.clients)) == 100
    assert source.preparation is not None
    assert {f"{name} count" for name in SERIES} <= set(source.preparation.x_columns)
    assert source.features["x"].shape == (262,)


def test_a_given_preparation_is_taken_and_said_to_be_given(tmp_path: Path):
    folder = write(tmp_path, challenge())
    learnt = load([folder], stays_per_client=1)
    assert learnt.given == ()
    (tmp_path / "public.json").write_text(json.dumps(to_json(learnt.preparation)))  # type: ignore[arg-type]
    given = load([folder], stays_per_client=1, like=tmp_path / "public.json")
    assert given.given == ("preparation",)
    assert given.preparation == learnt.preparation
    for one, other in zip(learnt.rows(), given.rows(), strict=True):
        np.testing.assert_array_equal(one.features["x"], other.features["x"])
