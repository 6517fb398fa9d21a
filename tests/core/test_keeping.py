# SPDX-License-Identifier: Apache-2.0
"""Which examples a client keeps from training."""

import numpy as np
import pytest

from agnosticfl.core.federated import FederatedData, from_arrays, only_rows
from agnosticfl.core.keeping import KEPT, kept_apart, places
from agnosticfl.errors import BadInput


def data(n: int = 4000, clients: int = 7) -> FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    owner, domain = rng.integers(clients, size=n), rng.integers(2, size=n)
    return from_arrays({"x": x, "y": np.arange(n)}, owner, domain)


def shuffled(own: FederatedData, seed: int = 1) -> FederatedData:
    """All examples in another order, and all of one client."""
    order = np.random.default_rng(seed).permutation(own.num_examples)
    return own._replace(
        examples={name: array[order] for name, array in own.examples.items()},
        domain=own.domain[order],
        offsets=np.array([0, own.num_examples]),
        client_ids=["all"],
    )


def numbers(own: FederatedData) -> set[int]:
    return set(own.examples["y"].tolist())


def test_every_example_is_on_one_side_and_the_sides_have_their_shares():
    own = data()
    parts = kept_apart({"train": own}, 0.2)
    assert set(parts) == {"train", *KEPT}
    assert sorted(y for part in parts.values() for y in numbers(part)) == list(range(4000))
    for name, share in (("train", 0.8), ("heldout", 0.1), ("test", 0.1)):
        # Five standard deviations of a count with this probability.
        room = 5 * (4000 * share * (1 - share)) ** 0.5
        assert abs(parts[name].num_examples - 4000 * share) < room


def test_it_follows_from_the_example_alone():
    own = data()
    here, there = (kept_apart({"train": d}, 0.3) for d in (own, shuffled(own)))
    assert {name: numbers(part) for name, part in here.items()} == {
        name: numbers(part) for name, part in there.items()
    }
    few = only_rows(own, own.examples["y"] % 3 == 0)
    assert numbers(kept_apart({"train": few}, 0.3)["test"]) == {
        y for y in numbers(here["test"]) if y % 3 == 0
    }


def test_the_hash_is_the_same_in_every_version_and_on_every_machine():
    """Another hash would move examples that were kept into training."""
    rows = {"x": np.array([[1.0, 2.0], [1.0, 3.0]], np.float32), "y": np.array([0, 1], np.int32)}
    own = from_arrays(rows, clients=[0, 0], domains=[0, 0])
    expected = [0.817879948838939, 0.12065193847427713]
    np.testing.assert_allclose(places(own), expected, rtol=1e-12)
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in rows.items()}
    np.testing.assert_array_equal(places(own._replace(examples=swapped)), places(own))


def test_an_example_that_is_there_twice_is_on_one_side():
    own = data(500)
    twice = {name: np.concatenate([array, array]) for name, array in own.examples.items()}
    both = from_arrays(twice, clients=np.repeat([0, 1], 500), domains=np.tile(own.domain, 2))
    parts = kept_apart({"train": both}, 0.4)
    for part in parts.values():
        half = part.sizes[0]
        np.testing.assert_array_equal(part.examples["y"][:half], part.examples["y"][half:])


def test_clients_keep_their_own():
    own = data()
    parts = kept_apart({"train": own}, 0.2)
    for k in range(own.num_clients):
        owned = {
            name: set(p.examples["y"][p.offsets[k] : p.offsets[k + 1]].tolist())
            for name, p in parts.items()
        }
        mine = set(own.examples["y"][own.offsets[k] : own.offsets[k + 1]].tolist())
        assert set.union(*owned.values()) == mine


def test_without_a_share_the_splits_are_its_own():
    own, other = data(), data(50)
    parts = kept_apart({"train": own, "test": other, "validation": other}, 0)
    assert set(parts) == {"train", "test"}
    assert parts["train"] is own
    assert parts["test"] is other


def test_no_client_measures_with_more_than_it_may():
    own = data()
    parts = kept_apart({"train": own}, 0.5, most=20)
    assert (parts["test"].sizes == 20).all()
    assert (parts["heldout"].sizes == 20).all()
    assert numbers(parts["test"]) <= numbers(kept_apart({"train": own}, 0.5)["test"])
    assert parts["train"].num_examples == kept_apart({"train": own}, 0.5)["train"].num_examples
    lone = kept_apart({"train": shuffled(own)}, 0.5, most=20)
    assert lone["test"].num_examples == 20


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_that_cannot_be_is_refused(share: float):
    with pytest.raises(BadInput, match="it must be from 0 to below 1"):
        kept_apart({"train": data(10)}, share)
