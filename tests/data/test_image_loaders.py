# SPDX-License-Identifier: Apache-2.0
"""mnist-writers and fashion-mnist, on tiny idx files and on the real ones."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agnosticfl.data.loaders import fashion_mnist, mnist_writers
from agnosticfl.errors import BadInput
from tests.data.image_files import (
    TRAIN_ROWS,
    bars,
    collect,
    fashion_folder,
    mnist_folder,
    write_images,
    write_qmnist,
)
from tests.data.real import real_data


def test_a_writer_is_a_client(tmp_path: Path) -> None:
    source = mnist_writers.load([mnist_folder(tmp_path)])
    splits = collect(source)
    train, test = splits["train"], splits["test"]
    assert set(splits) == {"train", "test"}
    assert source.total == 15
    assert train.clients == ["2100", "2101", "2102", "2103"] * 2 + ["0000", "0001"] * 2
    assert train.domain == ["student"] * 8 + ["employee"] * 4
    assert train.features["y"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    np.testing.assert_array_equal(train.features["x"], bars(train.features["y"].tolist()))
    assert (test.clients, test.domain) == (["2400", "2400", "0500"], ["student"] * 2 + ["employee"])


def test_student_writers_are_drawn_at_random(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    drawn = set[tuple[str, ...]]()
    for seed in range(20):
        source = mnist_writers.load([tmp_path], student_writers=2, seed=seed)
        train = collect(source)["train"]
        assert source.left_out == {"images of student writers not drawn": 4}
        assert Counter(train.domain) == {"student": 4, "employee": 4}
        drawn.add(tuple(sorted(set(train.clients) - {"0000", "0001"})))
        assert train.clients == collect(source)["train"].clients
    assert len(drawn) > 3  # of the 6 pairs


def test_heldout_writers_are_the_same_share_of_each_domain(tmp_path: Path) -> None:
    splits = collect(mnist_writers.load([mnist_folder(tmp_path)], heldout_fraction=0.5))
    train, heldout = splits["train"], splits["heldout"]
    assert set(train.clients).isdisjoint(heldout.clients)
    assert Counter(heldout.domain) == {
        "student": 4,
        "employee": 2,
    }  # 2 and 1 writers, 2 images each
    assert len(train.clients) + len(heldout.clients) == len(TRAIN_ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"student_writers": 5}, "student writers is 5; it must be from 1 to 4"),
        ({"student_writers": 0}, "student writers is 0"),
        ({"heldout_fraction": 1.0}, "heldout fraction is 1.0; it must be at least 0 and below 1"),
        ({"heldout_fraction": 0.9}, "leaves no student writer of 4 for training"),
        ({"heldout_fraction": float("nan")}, "heldout fraction is nan"),
        ({"student_writers": 1, "seed": -1}, "seed is -1; it must be 0 or more"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, int | float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        mnist_writers.load([mnist_folder(tmp_path)], **options)  # type: ignore[arg-type]


def test_label_files_must_fit_the_images(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    wrong = [*TRAIN_ROWS[:5], (9, 4, 2100), *TRAIN_ROWS[6:]]
    write_qmnist(tmp_path, "train", wrong)
    with pytest.raises(BadInput, match=r"row 5 \(offset 172\) has class 9; it must be MNIST's la"):
        mnist_writers.load([tmp_path])
    write_qmnist(tmp_path, "train", TRAIN_ROWS[:-1])
    with pytest.raises(BadInput, match="has 11 rows for 12 train images"):
        mnist_writers.load([tmp_path])
    write_qmnist(tmp_path, "train", [(c, 7, w) for c, _, w in TRAIN_ROWS])
    with pytest.raises(BadInput, match=r"row 0 .* has HSF series 7; it must be 0 to 4"):
        mnist_writers.load([tmp_path])


def test_a_writer_cannot_train_and_test(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    write_images(tmp_path, "t10k", [1])
    write_qmnist(tmp_path, "test", [(1, 4, 2103)])
    with pytest.raises(BadInput, match="writer 2103 is in both label files"):
        mnist_writers.load([tmp_path])


def test_three_classes_are_domain_and_label(tmp_path: Path) -> None:
    source = fashion_mnist.load([fashion_folder(tmp_path)], clients=3)
    train, test = collect(source)["train"], collect(source)["test"]
    assert source.left_out == {"images of other classes": 3}
    assert train.features["y"].tolist() == [0, 1, 2, 2, 1, 0]  # of labels 0 2 6 6 2 0
    assert train.domain == ["t-shirt", "pullover", "shirt", "shirt", "pullover", "t-shirt"]
    np.testing.assert_array_equal(train.features["x"], bars([0, 2, 6, 6, 2, 0]))
    assert Counter(train.clients) == {"train-0": 2, "train-1": 2, "train-2": 2}
    assert Counter(test.clients) == {"test-0": 1, "test-1": 1, "test-2": 1}


def test_random_clients_are_a_function_of_the_seed(tmp_path: Path) -> None:
    fashion_folder(tmp_path)
    first, again, other = (
        collect(fashion_mnist.load([tmp_path], clients=3, seed=seed))["train"].clients
        for seed in (1, 1, 2)
    )
    assert first == again != other
    with pytest.raises(BadInput, match=r"clients is 4; it must be from 1 to .* test examples, 3"):
        fashion_mnist.load([tmp_path], clients=4)


@pytest.mark.parametrize(
    ("load", "make"),
    [(mnist_writers.load, mnist_folder), (fashion_mnist.load, fashion_folder)],
    ids=["mnist-writers", "fashion-mnist"],
)
def test_truncated_files_are_bad_input(tmp_path: Path, load, make) -> None:
    make(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for length in np.linspace(0, len(whole) - 1, 40).astype(int):
            path.write_bytes(whole[:length])
            with pytest.raises(BadInput, match=path.name):
                load([tmp_path])
        path.write_bytes(whole)


def test_real_mnist_has_the_published_counts() -> None:
    source = mnist_writers.load([real_data("mnist_by_writer")])
    splits = collect(source)
    writers = {split: dict(zip(e.clients, e.domain, strict=True)) for split, e in splits.items()}
    assert Counter(writers["train"].values()) == {"student": 250, "employee": 289}  # 539
    assert Counter(writers["test"].values()) == {"student": 249, "employee": 48}  # 297
    assert Counter(splits["train"].domain) == {"student": 29050, "employee": 30950}
    assert Counter(splits["test"].domain) == {"student": 5001, "employee": 4999}


def test_real_mnist_with_the_papers_imbalance() -> None:
    source = mnist_writers.load([real_data("mnist_by_writer")], student_writers=50)
    train = collect(source)["train"]
    writers = dict(zip(train.clients, train.domain, strict=True))
    assert Counter(writers.values()) == {"student": 50, "employee": 289}
    assert source.left_out["images of student writers not drawn"] == 60000 - len(train.clients)


def test_real_fashion_mnist_has_even_domains() -> None:
    splits = collect(fashion_mnist.load([real_data("fashion_mnist")]))
    names = ("t-shirt", "pullover", "shirt")
    assert Counter(splits["train"].domain) == dict.fromkeys(names, 6000)
    assert Counter(splits["test"].domain) == dict.fromkeys(names, 1000)
    assert set(Counter(splits["train"].clients).values()) == {180}
