# SPDX-License-Identifier: Apache-2.0
"""rotated-fashion and rotated-writers: which client is turned which way, and its labels."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.data.loaders import rotated_fashion, rotated_writers
from agnosticfl.data.orientations import DOMAINS, training_clients, turned
from agnosticfl.errors import BadInput
from tests.data.image_files import (
    Examples,
    bars,
    collect,
    mnist_folder,
    write_images,
    write_qmnist,
)
from tests.data.real import real_data

TEST_ROWS = [(k % 10, k % 5, 900 + k // 2) for k in range(12)]  # six writers of two digits


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """400 training images and 60 test images, whose bars tell their labels."""
    for part, number in (("train", 400), ("t10k", 60)):
        write_images(tmp_path, part, [k % 10 for k in range(number)])
    return tmp_path


def domain_of(part: Examples) -> dict[str, str]:
    """Client -> its domain; every client has one."""
    pairs = set(zip(part.clients, part.domain, strict=True))
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def labels_seen(part: Examples) -> list[int]:
    """The labels that the bars tell, whichever way they are turned: a bar has 1 + label pixels."""
    return ((part.features["x"] > 0).sum(axis=(1, 2)) - 1).tolist()


def test_an_image_is_turned_by_hand():
    image = np.array([[1, 2], [3, 4]], np.uint8)
    images = turned(np.stack([image] * 3), np.array([0, 1, 2]))
    assert images.tolist() == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]]]


def test_clients_have_an_orientation_in_the_shares_asked_for(fashion: Path):
    options: dict[str, Any] = {"sideways": 0.25, "upside_down": 0.15, "heldout_fraction": 0.2}
    splits = collect(rotated_fashion.load([fashion], images_per_client=10, **options))
    train, heldout, test = (splits[name] for name in ("train", "heldout", "test"))
    # 24, 10 and 6 of 40 clients, of which 5, 2 and 1 are held out.
    assert Counter(domain_of(train).values()) == dict(zip(DOMAINS, (19, 8, 5), strict=True))
    assert Counter(domain_of(heldout).values()) == dict(zip(DOMAINS, (5, 2, 1), strict=True))
    assert Counter(domain_of(test).values()) == dict.fromkeys(DOMAINS, 2)
    clients = [set(part.clients) for part in (train, heldout, test)]
    assert sum(map(len, clients)) == len(set.union(*clients))
    assert set(Counter(train.clients).values()) == {10}


def test_clients_are_dealt_as_in_the_stores_that_the_results_are_of():
    """NumPy shuffles 0 … 9 to 1 4 7 6 2 9 3 5 0 8; from its end, 5 are upright, 3 sideways."""
    part = training_clients("0123456789", sideways=0.3, upside_down=0.2, heldout=0.4, seed=0)
    assert np.flatnonzero(part.domain == 0).tolist() == sorted([8, 0, 5, 3, 9])
    assert np.flatnonzero(part.domain == 1).tolist() == sorted([2, 6, 7])
    assert np.flatnonzero(part.domain == 2).tolist() == sorted([4, 1])
    assert np.flatnonzero(part.heldout).tolist() == sorted([8, 0, 2, 4])  # the first of each


def test_images_are_turned_as_their_domain_says_and_keep_their_labels(fashion: Path):
    splits = collect(
        rotated_fashion.load([fashion], images_per_client=10, sideways=0.3, upside_down=0.3)
    )
    for part in splits.values():
        labels = part.features["y"].tolist()
        assert labels == labels_seen(part)
        times = np.array([DOMAINS.index(name) for name in part.domain])
        np.testing.assert_array_equal(part.features["x"], turned(bars(labels), times))


def test_random_labels_are_in_one_domain_and_not_in_test(fashion: Path):
    source = rotated_fashion.load(
        [fashion], images_per_client=10, sideways=0.3, upside_down=0.5, random_labels=0.4
    )
    assert source.domains == ("upright", "sideways", "upside-down (noisy)")
    wrong = {
        (split, domain): np.mean(
            [
                label != seen
                for label, seen, name in zip(
                    part.features["y"].tolist(), labels_seen(part), part.domain, strict=True
                )
                if name == domain
            ]
        )
        for split, part in collect(source).items()
        for domain in source.domains
    }
    for (split, domain), share in wrong.items():
        if "noisy" in domain and split != "test":
            assert 0.2 < share < 0.5  # 0.36 of 160 and of 40 images, a tenth being right by chance
        else:
            assert share == 0


def test_fewer_images_can_be_drawn(fashion: Path):
    source = rotated_fashion.load([fashion], images=200, images_per_client=10, upside_down=0.1)
    assert source.left_out == {"training images not drawn": 200}
    splits = collect(source)
    assert len(splits["train"].clients) + len(splits["heldout"].clients) == 200
    assert source.total == 260


def test_the_same_seed_gives_the_same_data(fashion: Path):
    def made(seed: int) -> list[str]:
        options: dict[str, Any] = {"images_per_client": 10, "upside_down": 0.1, "seed": seed}
        return collect(rotated_fashion.load([fashion], **options))["train"].domain

    assert made(1) == made(1) != made(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"upside_down": 0.001}, "upside-down: 0 of 40 training clients"),
        ({"sideways": 0.6, "upside_down": 0.6}, "upright: 0 of 40 training clients"),
        ({"heldout_fraction": 1.0}, "heldout fraction is 1.0; it must be at least 0 and below 1"),
        ({"heldout_fraction": float("nan")}, "heldout fraction is nan"),
        ({"images": 401}, "images is 401; there are 400 training images"),
        ({"images_per_client": 60}, "1 test clients are too few for three domains"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_options(fashion: Path, options: dict[str, Any], message: str):
    settings: dict[str, Any] = {
        "images_per_client": 10,
        "sideways": 0.3,
        "upside_down": 0.3,
    } | options
    with pytest.raises(BadInput, match=message):
        rotated_fashion.load([fashion], **settings)


def test_whole_writers_are_turned(tmp_path: Path):
    mnist_folder(tmp_path)
    write_images(tmp_path, "t10k", [row[0] for row in TEST_ROWS])
    write_qmnist(tmp_path, "test", TEST_ROWS)
    source = rotated_writers.load([tmp_path], sideways=0.34, upside_down=0.34, heldout_fraction=0.5)
    splits = collect(source)
    assert source.total == 24
    # Two of six writers each, one of them held out; six other writers are tested on.
    assert {name: Counter(domain_of(part).values()) for name, part in splits.items()} == {
        "train": dict.fromkeys(DOMAINS, 1),
        "heldout": dict.fromkeys(DOMAINS, 1),
        "test": dict.fromkeys(DOMAINS, 2),
    }
    for part in splits.values():
        assert part.features["y"].tolist() == labels_seen(part)


def test_real_fashion_mnist_in_its_shares():
    splits = collect(rotated_fashion.load([real_data("fashion_mnist")]))
    train = Counter(domain_of(splits["train"]).values())
    assert train == {"upright": 432, "sideways": 34, "upside-down": 14}
    assert Counter(domain_of(splits["heldout"]).values()) == {
        "upright": 108,
        "sideways": 8,
        "upside-down": 4,
    }
    assert Counter(splits["test"].domain) == {
        "upright": 3400,
        "sideways": 3300,
        "upside-down": 3300,
    }


def test_real_writers_in_their_shares():
    splits = collect(rotated_writers.load([real_data("mnist_by_writer")]))
    train = Counter(domain_of(splits["train"]).values())
    assert train == {"upright": 388, "sideways": 30, "upside-down": 13}
    assert Counter(domain_of(splits["test"]).values()) == dict.fromkeys(DOMAINS, 99)
    images = {split: Counter(part.domain) for split, part in splits.items()}
    assert images == {  # docs/loaders.md
        "train": {"upright": 43221, "sideways": 3328, "upside-down": 1483},
        "heldout": {"upright": 10883, "sideways": 794, "upside-down": 291},
        "test": {"upright": 3678, "sideways": 3314, "upside-down": 3008},
    }
