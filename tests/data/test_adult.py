# SPDX-License-Identifier: Apache-2.0
"""adult, on four people whose features can be worked out by hand, and on the real files."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats.tables import open_table
from agnosticfl.data.loaders import adult
from agnosticfl.data.preparation.apply import label_of, prepared_rows
from agnosticfl.data.preparation.record import to_json
from agnosticfl.errors import BadInput
from tests.data.image_files import collect
from tests.data.real import real_data

REST = "Never-married, Sales, Husband, White, {sex}, 0, 0, 40, United-States, {label}"


def person(age: int, work: str, education: str, sex: str, label: str) -> str:
    return f"{age}, {work}, 7, {education}, 9, {REST.format(sex=sex, label=label)}\n"


TRAIN = person(20, "?", "Doctorate", "Male", ">50K") + person(
    40, "Private", "HS-grad", "Male", "<=50K"
)
TEST = "|1x3 Cross validator\n" + person(50, "State-gov", "Doctorate", "Female", "<=50K.") + "\n"


def write(folder: Path, train: str = TRAIN, test: str = TEST) -> list[Path]:
    (folder / "adult.data").write_text(train)
    (folder / "adult.test").write_text(test)
    return [folder]


def test_new_rows_become_what_was_stored(tmp_path: Path) -> None:
    """The store says how a row became features: another one's means would be noticed."""
    source = adult.load(write(tmp_path), clients=1)
    names = [*adult._COLUMNS, "income"]
    table = open_table(tmp_path / "adult.data", names)
    assert source.preparation is not None
    assert source.labels == ("<=50K", ">50K")
    (some,) = prepared_rows(source.preparation, table, ["income"])
    train = collect(source)["train"]
    np.testing.assert_array_equal(some.features["x"], train.features["x"])
    y = label_of(source.preparation, some.place, some.batch)
    np.testing.assert_array_equal(y, train.features["y"])


def test_features_by_hand(tmp_path: Path) -> None:
    splits = collect(adult.load(write(tmp_path), clients=1))
    train, test = splits["train"], splits["test"]
    # Ages 20 and 40 have mean 30 and deviation 10. The other five numbers are constant, hence 0.
    # Then: work ? / Private, education Doctorate / HS-grad, and six categories with one value.
    first = [-1, 0, 0, 0, 0, 0, *[1, 0], *[1, 0], *[1] * 6]
    second = [1, 0, 0, 0, 0, 0, *[0, 1], *[0, 1], *[1] * 6]
    np.testing.assert_array_equal(train.features["x"], np.array([first, second], np.float32))
    assert train.features["y"].tolist() == [1, 0]
    assert train.domain == ["doctorate", "others"]
    # Training saw neither State-gov nor Female, and its mean and deviation stand: (50 − 30) / 10.
    unseen = [2, 0, 0, 0, 0, 0, *[0, 0], *[1, 0], 1, 1, 1, 1, 0, 1]
    np.testing.assert_array_equal(test.features["x"], np.array([unseen], np.float32))
    assert (test.features["y"].tolist(), test.domain) == ([0], ["doctorate"])
    assert (train.clients, test.clients) == (["train-0"] * 2, ["test-0"])


def test_a_given_preparation_is_taken_in_the_place_of_one_that_is_learnt(tmp_path: Path) -> None:
    public, own = tmp_path / "public", tmp_path / "own"
    public.mkdir()
    own.mkdir()
    learnt = adult.load(write(public), clients=1)
    assert learnt.preparation is not None
    file = tmp_path / "preparation.json"
    file.write_text(json.dumps(to_json(learnt.preparation)))
    others = person(60, "State-gov", "Doctorate", "Female", ">50K")
    given = adult.load(write(own, others, TRAIN), clients=1, like=file)
    assert (given.given, learnt.given) == (("preparation",), ())
    assert given.preparation == learnt.preparation
    splits = collect(given)
    # As in the last test, but 60 years: by its own one row, age would have been 0.
    unseen = [3, 0, 0, 0, 0, 0, *[0, 0], *[1, 0], 1, 1, 1, 1, 0, 1]
    np.testing.assert_array_equal(splits["train"].features["x"], np.array([unseen], np.float32))
    known = collect(learnt)["train"].features["x"]
    np.testing.assert_array_equal(splits["test"].features["x"], known)


def test_a_preparation_of_other_columns_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    preparation = adult.load(folder, clients=1).preparation
    assert preparation is not None
    file = tmp_path / "preparation.json"
    for columns, message in (
        (preparation.columns[1:], "it has number 'fnlwgt' where number 'age' is needed"),
        (preparation.columns[:-1], "it has none where category 'native-country' is needed"),
    ):
        file.write_text(json.dumps(to_json(preparation._replace(columns=columns))))
        with pytest.raises(BadInput, match=f"preparation.json is for other columns: {message}"):
            adult.load(folder, clients=1, like=file)


def test_training_clients_can_be_held_out(tmp_path: Path) -> None:
    people = "".join(person(20 + i, "Private", "HS-grad", "Male", ">50K") for i in range(10))
    folder = write(tmp_path, people, people)
    whole = collect(adult.load(folder, clients=5))
    parts = collect(adult.load(folder, clients=5, heldout_fraction=0.4))
    assert set(parts["heldout"].clients) == {"train-0", "train-1"}
    assert Counter(parts["train"].clients + parts["heldout"].clients) == Counter(
        whole["train"].clients
    )
    assert parts["test"].clients == whole["test"].clients
    with pytest.raises(BadInput, match=r"heldout fraction is 0\.95; .* leave a client"):
        adult.load(folder, clients=5, heldout_fraction=0.95)


def test_column_names_a_bom_and_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = collect(adult.load(write(tmp_path), clients=1))
    names = "\ufeffage, workclass, fnlwgt, education\n"
    dressed = collect(adult.load(write(tmp_path, (names + TRAIN).replace("\n", "\r\n")), clients=1))
    np.testing.assert_array_equal(plain["train"].features["x"], dressed["train"].features["x"])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", "adult.data: holds no row"),
        (TRAIN + "20, Private\n", "adult.data: line 3 has 2 fields; 15 are needed"),
        (TRAIN.replace("<=50K", "maybe"), "line 2 has label 'maybe'; allowed: <=50K, >50K"),
        (TRAIN.replace("40,", "nan,", 1), "line 1 has hours-per-week 'nan'; .* whole number"),
        (TRAIN.replace("20,", "-1,"), "line 1 has age '-1'; it must be a whole number"),
        (TRAIN.replace("Private", ""), "line 2 has no workclass; unknown is written"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, train: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        adult.load(write(tmp_path, train), clients=1)


def test_other_encodings_and_missing_files(tmp_path: Path) -> None:
    sources = write(tmp_path)
    (tmp_path / "adult.data").write_bytes(TRAIN.replace("Male", "Mâle").encode("latin-1"))
    with pytest.raises(BadInput, match=r"adult.data: no UTF-8 text at offset \d+"):
        adult.load(sources)
    (tmp_path / "adult.data").unlink()
    with pytest.raises(BadInput, match=f"no file adult.data in {tmp_path}"):
        adult.load(sources)


def test_every_truncation_is_noticed_or_ends_a_row(tmp_path: Path) -> None:
    sources = write(tmp_path)
    path = tmp_path / "adult.data"
    for length in range(len(TRAIN)):
        path.write_text(TRAIN[:length])
        with suppress(BadInput):
            rows = len(collect(adult.load(sources, clients=1))["train"].clients)
            assert TRAIN[:length].count("50K") == rows


@given(st.text(max_size=30), st.integers(0, len(TRAIN)))
def test_any_text_gives_rows_or_bad_input(
    tmp_path_factory: pytest.TempPathFactory, noise: str, place: int
) -> None:
    train = TRAIN[:place] + noise + TRAIN[place + len(noise) :]
    folder = tmp_path_factory.getbasetemp()
    (folder / "adult.data").write_text(train, encoding="utf-8", errors="surrogatepass")
    (folder / "adult.test").write_text(TEST)
    with suppress(BadInput):
        x = collect(adult.load([folder], clients=1))["train"].features["x"]
        assert np.isfinite(x).all()


def test_real_adult_has_the_published_counts() -> None:
    source = adult.load([real_data("adult")])
    splits = collect(source)
    assert Counter(splits["train"].domain) == {"doctorate": 413, "others": 32148}
    assert Counter(splits["test"].domain) == {"doctorate": 181, "others": 16100}
    assert splits["train"].features["x"].shape == (32561, 108)
    numbers = splits["train"].features["x"][:, :6].astype(np.float64)
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(numbers.std(axis=0), 1, atol=1e-6)
    # adult.names: 23.93 % of all earn more than 50K.
    y = np.concatenate([e.features["y"] for e in splits.values()])
    assert round(100 * float(y.mean()), 2) == 23.93
