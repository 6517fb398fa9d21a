# SPDX-License-Identifier: Apache-2.0
"""Whose the rows of a raw table are, and how they are shared among the splits."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.core.federated import FederatedData, domain_counts
from agnosticfl.data.collect import collect
from agnosticfl.data.loaders.arrays import from_frame, load
from agnosticfl.data.tabular.names import file_names
from agnosticfl.errors import BadInput


def table(clients_of: dict[str, int], rows: int) -> dict[str, Any]:
    """So many clients in each domain, each with so many rows; every third row is a yes."""
    who = [f"{d}{k:03d}" for d, n in clients_of.items() for k in range(n) for _ in range(rows)]
    land = [d for d, n in clients_of.items() for _ in range(n * rows)]
    number = np.arange(len(who))
    answer = np.where(number % 3 == 0, "yes", "no")
    return {"who": who, "land": land, "v": number.astype(float), "answer": answer}


ROLES: dict[str, Any] = {"client": "who", "domain": "land"}
FRACTIONS: dict[str, Any] = {"test_fraction": 0.2, "heldout_fraction": 0.1}


def clients_by_domain(data: FederatedData) -> Counter[str]:
    return Counter(name[0] for name in data.client_ids)


def test_every_domain_is_in_every_split_in_its_share() -> None:
    frame = table({"a": 100, "b": 10}, rows=4)
    data = collect(from_frame(frame, **ROLES, **FRACTIONS, features="v"))
    assert {split: clients_by_domain(part) for split, part in data.items()} == {
        "train": {"a": 70, "b": 7},
        "heldout": {"a": 10, "b": 1},
        "test": {"a": 20, "b": 2},
    }
    ids = [client for part in data.values() for client in part.client_ids]
    assert len(ids) == len(set(ids)) == 110  # nobody is in two splits
    other = collect(from_frame(frame, **ROLES, **FRACTIONS, features="v", seed=1))
    assert set(other["test"].client_ids) != set(data["test"].client_ids)


def test_a_domain_of_two_clients_is_in_train_and_test_and_that_is_said() -> None:
    source = from_frame(table({"a": 10, "b": 2}, rows=50), **ROLES, **FRACTIONS, features="v")
    data = collect(source)
    assert [clients_by_domain(data[split])["b"] for split in ("train", "test", "heldout")] == [
        *(1, 1, 0)
    ]
    assert source.notes == (
        "heldout has no or very few rows (under 30) of the domain 'b' (0): what is measured there"
        " is noise or missing; try a larger heldout_fraction, split_by rows, merge small domains",
    )
    alone = collect(from_frame(table({"a": 10, "b": 1}, 50), **ROLES, **FRACTIONS, features="v"))
    assert domain_counts(alone["train"]).tolist() == [350, 50]


def test_a_domain_that_is_no_clients_main_one_stays_in_train() -> None:
    frame = table({"a": 10}, rows=5)
    for row in range(50):  # one row of `b`, of whichever client would be in test
        some = frame | {"land": ["b" if i == row else "a" for i in range(50)]}
        data = collect(from_frame(some, **ROLES, test_fraction=0.5, features="v"))
        assert domain_counts(data["train"])[1] == 1


def test_rows_of_each_client_are_shared_by_class() -> None:
    frame = table({"a": 1, "b": 1}, rows=300) | {"land": ["x"] * 300 + ["y"] * 300}
    options: dict[str, Any] = {**ROLES, **FRACTIONS, "label": "answer", "split_by": "rows"}
    data = collect(from_frame(frame, **options))
    for split, rows in (("train", 210), ("heldout", 30), ("test", 60)):
        part = data[split]
        assert part.sizes.tolist() == [rows, rows]
        yes = np.bincount(part.domain, part.examples["y"])
        np.testing.assert_allclose(yes, rows / 3, atol=1)
    values = [part.examples["x"] for part in data.values()]
    assert len(np.unique(np.concatenate(values))) == 600  # each row is in one split
    order = data["test"].examples["x"][:60, 0]
    assert not np.allclose(np.diff(order), np.diff(order)[0])  # by chance, not every fifth


def test_small_strata_have_their_share_together() -> None:
    """Of 100 clients with 3 rows each, none could give up a fifth: together they do."""
    data = collect(from_frame(table({"a": 100}, 3), **ROLES, **FRACTIONS, label="answer",
                              split_by="rows"))  # fmt: skip
    assert {name: part.num_examples for name, part in data.items()} == {
        "train": 210, "heldout": 30, "test": 60}  # fmt: skip


def test_without_strata_the_split_depends_on_the_client_alone() -> None:
    """So that rows can be added later without moving anybody."""
    few, many = table({"a": 50}, rows=2), table({"a": 80}, rows=2)
    options: dict[str, Any] = {**ROLES, **FRACTIONS, "stratify": False, "features": "v"}
    few_test = set(collect(from_frame(few, **options))["test"].client_ids)
    many_test = set(collect(from_frame(many, **options))["test"].client_ids)
    assert few_test == {client for client in many_test if int(client[1:]) < 50}
    rows = collect(from_frame(many, **options, split_by="rows"))
    assert 10 < rows["test"].num_examples < 60
    assert sum(part.num_examples for part in rows.values()) == 160


def test_each_row_can_be_a_client() -> None:
    frame = table({"a": 30, "b": 10}, rows=1)
    source = from_frame(frame, client="@row", domain="land", features="v", test_fraction=0.2)
    data = collect(source)
    assert domain_counts(data["test"]).tolist() == [6, 2]
    ids = [int(client) for part in data.values() for client in part.client_ids]
    assert sorted(ids) == list(range(40))


def test_rows_can_be_dealt_to_clients_of_one_size() -> None:
    frame = table({"a": 1, "b": 1}, rows=95)
    options: dict[str, Any] = {"domain": "land", "rows_per_client": 10, "features": "v"}
    train = collect(from_frame(frame, **options, scale="none"))["train"]
    assert train.client_ids[0] == "a-0"
    assert train.num_clients == 20  # round(9.5) = 10 in each domain
    assert set(train.sizes.tolist()) == {9, 10}
    first = train.examples["x"][: train.offsets[1], 0]
    assert np.diff(first).max() > 1  # dealt by chance
    assert set(train.domain[: train.offsets[10]]) == {0}
    again = collect(from_frame(frame, **options, scale="none"))["train"]
    np.testing.assert_array_equal(again.examples["x"], train.examples["x"])
    with pytest.raises(BadInput, match="either client or rows_per_client, one of the two"):
        from_frame(frame, **options, client="who")
    with pytest.raises(BadInput, match="either client or rows_per_client, one of the two"):
        from_frame(frame, domain="land")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["processed.cleveland.data", "processed.va.data"], ["cleveland", "va"]),
        (["visits_2020-north.csv", "visits_2021-north.csv"], ["2020", "2021"]),
        (["a.csv", "a_b.csv"], ["a", "a_b"]),
        (["north/rows.csv", "south/rows.csv"], ["north", "south"]),
        (["visits.csv.gz"], ["visits"]),
    ],
)
def test_files_are_named_by_what_tells_them_apart(files: list[str], names: list[str]) -> None:
    assert file_names([Path(file) for file in files]) == names


def test_a_file_can_be_domain_and_client(tmp_path: Path) -> None:
    for name, rows in (("north", "1\n2\n"), ("south", "3\n")):
        (tmp_path / f"h.{name}.csv").write_text(f"v\n{rows}")
    files = sorted(tmp_path.iterdir())
    train = collect(load(files, client="@file", domain="@file", scale="none"))["train"]
    assert train.domains == ("north", "south")
    assert list(train.client_ids) == ["north", "south"]
    assert train.examples["x"].tolist() == [[1], [2], [3]]
    rows = collect(load(files, client="@row", domain="@file"))["train"]
    assert list(rows.client_ids) == ["north:0", "north:1", "south:0"]
    with pytest.raises(BadInput, match="a file is given twice"):
        load([files[0], files[0]], client="@row", domain="@file")
    with pytest.raises(BadInput, match="@file is for files; name a column of the arrays"):
        from_frame({"v": [1]}, client="@row", domain="@file")


def test_many_thin_domains_are_one_line() -> None:
    source = from_frame(table({chr(97 + i): 1 for i in range(20)}, 3), **ROLES, features="v")
    assert len(source.notes) == 1
    assert "'j' (3) … and 10 more: little can be learnt about it" in source.notes[0]
