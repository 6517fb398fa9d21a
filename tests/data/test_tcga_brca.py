# SPDX-License-Identifier: Apache-2.0
"""Survival in six regions: synthetic patients in FLamby's tables, and counts of the real ones."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agnosticfl.data.loaders.tcga_brca import DOMAINS, load
from agnosticfl.data.preparation.record import Number, Preparation, to_json
from tests.data.image_files import Examples, collect
from tests.data.real import real_data
from tests.data.survival_files import FEATURES, Patient, patients, write
from tests.data.texts import one_line


def test_regions_are_clients_and_domains(tmp_path: Path):
    source = load([write(tmp_path, patients(4), f"nobody,50,{','.join(['0'] * 38)},0,10\n")])
    splits = collect(source)
    assert source.left_out == {"patients whom the split does not name": 1}
    for split, number in (("train", 4), ("test", 2)):
        assert splits[split].clients == splits[split].domain
        assert Counter(splits[split].domain) == dict.fromkeys(DOMAINS, number)
    first = splits["train"].features["y"][:4]
    assert first.tolist() == [[2000, 0], [1950, 1], [1900, 1], [1850, 1]]  # time, event


def test_the_age_is_scaled_by_training_patients_and_nothing_else(tmp_path: Path):
    source = load([write(tmp_path, patients(4))])
    splits = collect(source)
    ages = splits["train"].features["x"][:, 0]
    np.testing.assert_allclose([ages.mean(), ages.std()], [0, 1], atol=1e-6)
    np.testing.assert_allclose(  # 40 and 41, where training has 40 to 43
        splits["test"].features["x"][:2, 0], (np.array([40, 41]) - 41.5) / np.sqrt(1.25), rtol=1e-6
    )
    assert not splits["train"].features["x"][:, 1:].any()
    assert source.preparation is not None
    assert source.preparation.x_columns == FEATURES


def test_the_scale_of_the_age_can_be_given(tmp_path: Path):
    folder = write(tmp_path, patients(4))
    learnt = load([folder])
    assert learnt.preparation is not None
    columns = (Number(FEATURES[0], 50.0, 20.0, 50.0), *learnt.preparation.columns[1:])
    (tmp_path / "public.json").write_text(json.dumps(to_json(Preparation(columns))))
    given = load([folder], like=tmp_path / "public.json")
    assert (given.given, learnt.given) == (("preparation",), ())
    ages = collect(given)["test"].features["x"][:2, 0]
    np.testing.assert_allclose(ages, [-0.5, -0.45], rtol=1e-6)  # 40 and 41
    (tmp_path / "public.json").write_text(json.dumps(to_json(Preparation(columns[1:]))))
    message = one_line(lambda: load([folder], like=tmp_path / "public.json"))
    assert "it has number 'feature0' where number 'age_at_index' is needed" in message


def test_an_event_brings_those_at_risk_with_it(tmp_path: Path):
    splits = collect(load([write(tmp_path, patients(4))], risk_sets=True))
    train = splits["train"]
    # Times 2000 (no event), 1950, 1900, 1850: one, two and three others are still there.
    assert train.features["at_risk_count"].tolist() == [0, 1, 2, 3] * 6
    x, at_risk = train.features["x"], train.features["at_risk"]
    np.testing.assert_array_equal(at_risk[3, :3], x[:3])
    np.testing.assert_array_equal(at_risk[1, :1], x[:1])
    assert not at_risk[1, 1:].any()
    # Test patients are at risk with each other only: 2000 (no event) and 1950.
    assert splits["test"].features["at_risk_count"].tolist() == [0, 1] * 6


def test_patients_can_be_held_out(tmp_path: Path):
    splits = collect(load([write(tmp_path, patients(8))], heldout_fraction=0.5, risk_sets=True))

    def events(part: Examples) -> dict[str, int]:
        return dict(Counter(np.array(part.domain)[part.features["y"][:, 1] == 1].tolist()))

    # Of two without an event one is held out, of six with one three.
    assert Counter(splits["heldout"].domain) == dict.fromkeys(DOMAINS, 4)
    assert events(splits["heldout"]) == events(splits["train"]) == dict.fromkeys(DOMAINS, 3)
    assert splits["train"].features["at_risk_count"].max() <= 3
    message = one_line(lambda: load([tmp_path], heldout_fraction=1.0))
    assert "heldout fraction is 1.0" in message


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ([], "names no patient"),
        ([Patient("ann", "train_6", 40, 1, 5)], "fold2 is 'train_6'; it must be train_0 to test_5"),
        ([Patient("ann", "train_0", 40, 2, 5)], "ann needs finite numbers"),
        ([Patient("ann", "train_0", 40, 1, -5)], "T of at least 0"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, known: list[Patient], reason: str):
    assert reason in one_line(lambda: load([write(tmp_path, known)]))


def test_tables_must_fit_together(tmp_path: Path):
    write(tmp_path, patients(2))
    folds = tmp_path / "train_test_split.csv"
    folds.write_text(folds.read_text() + "\nbob,train,train_0")
    assert "names bob, whom" in one_line(lambda: load([tmp_path]))
    folds.write_text("pid,fold\n")
    assert "there is no column 'fold2'" in one_line(lambda: load([tmp_path]))
    write(tmp_path, patients(2))
    table = tmp_path / "brca.csv"
    whole = table.read_text()
    table.write_text(whole.replace(",feature0", "", 1))
    assert "line 2 has not as many fields as the header" in one_line(lambda: load([tmp_path]))
    table.write_text(whole[: whole.index("\n") + 30])
    assert "line 2 has not as many fields as the header" in one_line(lambda: load([tmp_path]))
    shorter = [line.replace(",feature0", "").replace(",0,", ",", 1) for line in whole.split("\n")]
    table.write_text("\n".join(shorter))
    assert "has 38 features; 39 are needed" in one_line(lambda: load([tmp_path]))


def test_real_regions_have_flamby_s_counts():
    source = load([real_data("tcga_brca")])
    splits = collect(source)
    assert (len(splits["train"].clients), len(splits["test"].clients)) == (866, 222)
    total: Counter[str] = Counter()
    died: Counter[str] = Counter()
    for part in splits.values():
        total.update(part.domain)
        died.update(np.array(part.domain)[part.features["y"][:, 1] == 1].tolist())
    published = {
        "Northeast": (311, 59),
        "West": (206, 22),
        "South": (196, 39),
        "Midwest": (162, 19),
        "Europe": (162, 9),
        "Canada": (51, 3),
    }
    assert {name: (total[name], died[name]) for name in DOMAINS} == published
    assert source.left_out == {"patients whom the split does not name": 8}
