# SPDX-License-Identifier: Apache-2.0
"""Synthetic data has the sizes, shares and difficulty that were asked for."""

from typing import Any

import numpy as np
import pytest

from agnosticfl.data.collect import collect
from agnosticfl.data.loaders.synthetic import load
from agnosticfl.errors import BadInput


@pytest.mark.parametrize("kind", ["points", "images", "sentences"])
def test_the_same_seed_gives_the_same_data(kind: str) -> None:
    one, two, other = (collect(load(kind=kind, seed=seed)) for seed in (1, 1, 2))
    for split, data in one.items():
        for name, values in data.examples.items():
            np.testing.assert_array_equal(values, two[split].examples[name])
    name = next(iter(one["train"].examples))
    first, second = (data["train"].examples[name][:10] for data in (one, other))
    assert (first != second).any()


def test_sizes_and_splits() -> None:
    source = load(clients=2000, examples=5, test_fraction=0.2, heldout_fraction=0.1)
    data = collect(source)
    sizes = np.concatenate([part.sizes for part in data.values()])
    assert source.total == sizes.sum()
    assert sorted(set(sizes.tolist())) == list(range(1, 10))
    np.testing.assert_allclose(sizes.mean(), 5, atol=0.2)
    clients = [data[split].num_clients for split in ("train", "heldout", "test")]
    assert sum(clients) == 2000
    np.testing.assert_allclose(clients, [1400, 200, 400], atol=70)


def test_the_two_kinds_of_domain() -> None:
    shares = "3,1"  # three quarters and one
    by_client = collect(load(clients=1000, shares=shares, test_fraction=0.0))["train"]
    first = by_client.domain[by_client.offsets[:-1]]
    np.testing.assert_array_equal(by_client.domain, np.repeat(first, by_client.sizes))
    np.testing.assert_allclose(first.mean(), 0.25, atol=0.05)
    by_example = collect(load(clients=1000, shares=shares, partition="data", test_fraction=0.0))[
        "train"
    ]
    np.testing.assert_allclose(by_example.domain.mean(), 0.25, atol=0.02)
    assert len(set(by_example.domain[: by_example.offsets[5]].tolist())) == 2


def test_difficulty_is_the_part_left_to_chance() -> None:
    """Clear images of a class are nearly equal; their labels are right in 1 − d + d / 10."""
    data = collect(load(kind="images", clients=300, difficulty="0,0.5", test_fraction=0.0))["train"]
    image, label = data.examples["x"].astype(float), data.examples["y"]
    for domain, right in ((0, 1.0), (1, 0.55)):
        x, y = image[data.domain == domain], label[data.domain == domain]
        means = np.stack([np.median(x[y == c], axis=0) for c in range(10)])
        nearest = ((x[:, None] - means) ** 2).sum(axis=(2, 3)).argmin(axis=1)
        np.testing.assert_allclose((nearest == y).mean(), right, atol=0.05)


def test_sentences_have_a_beginning_and_an_end() -> None:
    source = load(kind="sentences", clients=50)
    tokens = collect(source)["train"].examples["tokens"]
    assert source.vocabulary is not None
    assert len(source.vocabulary) == 10_004
    assert tokens.dtype == np.int16
    assert (tokens[:, 0] == 1).all()
    assert ((tokens == 2).sum(axis=1) == 1).all()
    end = (tokens == 2).argmax(axis=1)
    np.testing.assert_array_equal((tokens == 0).sum(axis=1), 19 - end)
    assert tokens.max() < 10_003


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "songs"}, "unknown kind of synthetic data 'songs'"),
        ({"partition": "both"}, "unknown partition"),
        ({"clients": 0}, "must be positive"),
        ({"seed": -1}, "must be 0 or more"),
        ({"shares": "1,zwei"}, "are not numbers"),
        ({"shares": "1,-1"}, "must not be negative"),
        ({"shares": "1"}, "for each domain"),
        ({"difficulty": "0,2"}, "for each domain"),
        ({"test_fraction": 1.0}, "their sum below 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(**options)
