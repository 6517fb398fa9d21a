# SPDX-License-Identifier: Apache-2.0
"""FLamby's four hospitals: synthetic patients, and the published counts on the real files."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agnosticfl.data.loaders.heart_disease import DOMAINS, apart, load
from tests.data.image_files import collect
from tests.data.real import real_data
from tests.data.texts import one_line


def patient(
    age: float, cp: int = 1, ecg: int = 0, ill: int = 0, chol: str = "200", ca: str = "?"
) -> str:
    return f"{age},1.0,{cp}.0,120,{chol},0,{ecg},150,0,1.5,?,{ca},?,{ill}"


def hospitals(folder: Path, **changed: list[str]) -> Path:
    """Twelve patients each, of all levels, every second one ill; ages tell them apart."""
    for name in DOMAINS:
        lines = changed.get(name) or [
            patient(40 + k, 1 + k % 4, k % 3, ill=k % 2 * (1 + k % 4)) for k in range(12)
        ]
        (folder / f"processed.{name}.data").write_text("\n".join([*lines, ""]))
    return folder


def test_the_split_is_scikit_learns():
    """Rows that train_test_split(…, random_state=43) of scikit-learn 1.9 put into the test part."""
    y = np.array([0, 1, 1, 0, 1] * 4)
    assert sorted(apart(y, 0.66, 43).tolist()) == [0, 1, 3, 4, 10, 12, 19]  # stratify=y
    assert sorted(apart(np.zeros(10), 0.66, 43).tolist()) == [3, 6, 8, 9]  # not stratified
    two_of_a_class = np.array([0] * 8 + [1] * 2)
    assert sorted(apart(two_of_a_class, 0.66, 43).tolist()) == [3, 6, 8, 9]


def test_a_hospital_is_a_client_and_a_domain(tmp_path: Path):
    source = load([hospitals(tmp_path)])
    splits = collect(source)
    assert set(splits) == {"train", "test"}
    assert splits["train"].clients == splits["train"].domain
    assert Counter(splits["train"].domain) == dict.fromkeys(DOMAINS, 7)  # ⌊0.66 · 12⌋
    assert Counter(splits["test"].domain) == dict.fromkeys(DOMAINS, 5)  # ⌈0.34 · 12⌉
    assert source.labels == ("no disease", "disease")


def test_numbers_have_mean_0_and_deviation_1_in_each_hospital_s_training_patients(tmp_path: Path):
    older = [patient(70 + 2 * k, 1 + k % 4, k % 3, ill=k % 2) for k in range(12)]
    splits = collect(load([hospitals(tmp_path, va=older)]))
    train = splits["train"]
    for name in DOMAINS:
        ages = train.features["x"][np.array(train.domain) == name, 0]
        np.testing.assert_allclose([ages.mean(), ages.std(ddof=1)], [0, 1], atol=1e-6)
    # Blood pressure, cholesterol and the others that all share are 0, in test too.
    for part in splits.values():
        assert not part.features["x"][:, [1, 2, 3, 4, 5, 6, 7]].any()


def test_categories_have_no_first_level(tmp_path: Path):
    splits = collect(load([hospitals(tmp_path)]))
    x = np.concatenate([part.features["x"] for part in splits.values()])
    assert x.shape == (48, 13)
    # cp 1 and restecg 0 are the lowest of all five columns.
    lowest = (x[:, 8:] < 0).all(axis=1)
    assert lowest.sum() == 4 * 1  # age 40 only: k % 4 == 0 and k % 3 == 0


def test_patients_who_lack_a_value_that_is_used_are_left_out(tmp_path: Path):
    lines = [patient(40 + k, ill=k % 2, chol="?" if k < 2 else "200") for k in range(12)]
    source = load([hospitals(tmp_path, va=lines)])
    assert source.left_out == {"patients with a missing value": 2}
    assert source.total == 46


def test_patients_can_be_held_out_of_the_training_ones(tmp_path: Path):
    hospitals(tmp_path)
    plain, apart_too = collect(load([tmp_path])), collect(load([tmp_path], heldout_fraction=0.3))
    assert Counter(apart_too["heldout"].domain) == dict.fromkeys(DOMAINS, 3)  # ⌈0.3 · 7⌉
    assert Counter(apart_too["train"].domain) == dict.fromkeys(DOMAINS, 4)
    assert apart_too["test"].features["y"].tolist() == plain["test"].features["y"].tolist()
    message = one_line(lambda: load([tmp_path], heldout_fraction=1.0))
    assert "heldout fraction is 1.0" in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,2,3", "line 1 has 3 fields; 14 are needed"),
        (patient(40, cp=5), "line 1: column 2 is 5; allowed: 1 to 4"),
        (patient(40, ecg=3), "line 1: column 6 is 3; allowed: 0 to 2"),
        (patient(40, chol="high"), "are not all numbers or ?"),
        (patient(40, chol="?"), "fewer than two patients have all values"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, line: str, reason: str):
    folder = hospitals(tmp_path, va=[line])
    message = one_line(lambda: load([folder]))
    assert "processed.va.data" in message
    assert reason in message


def test_real_hospitals_have_flamby_s_counts():
    source = load([real_data("heart_disease")])
    splits = collect(source)
    total: Counter[str] = Counter()
    ill: Counter[str] = Counter()
    for part in splits.values():
        total.update(part.domain)
        ill.update(np.array(part.domain)[part.features["y"] == 1].tolist())
    assert [total[name] for name in DOMAINS] == [303, 261, 46, 130]
    assert [ill[name] for name in DOMAINS] == [139, 98, 45, 101]
    assert [splits["test"].domain.count(name) for name in DOMAINS] == [104, 89, 16, 45]
    assert source.features["x"].shape == (13,)
