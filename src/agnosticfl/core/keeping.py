# SPDX-License-Identifier: Apache-2.0
"""Which of its examples a client keeps from training, to measure models with.

By what an example is, and nothing else: its features are hashed to a number from 0 to 1. So a
client and a simulation of it keep the same ones, in whatever order they lie and whoever else there
is; an example that is there twice, or at two clients, is on one side everywhere.
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from agnosticfl.core.federated import FederatedData, only_rows, slices
from agnosticfl.errors import check

KEPT = ("heldout", "test")  # to look at while training goes on; to judge the end by


def kept_apart(
    parts: Mapping[str, FederatedData], share: float, most: int | None = None
) -> dict[str, FederatedData]:
    """The splits by which a client trains ("train") and measures (`KEPT`).

    Args:
      parts: its splits by name, "train" among them.
      share: of its training examples, so many are kept, half of them for each split of `KEPT`. 0:
        those of its own splits of that name, as far as there are any.
      most: examples of a split with which one client measures: those with the lowest hashes.
    """
    check(0 <= share < 1, f"share of examples to keep is {share}; it must be from 0 to below 1")
    found = {name: data for name, data in parts.items() if name in ("train", *KEPT)}
    if share > 0:
        train = parts["train"]
        place = places(train)
        found = {
            "train": only_rows(train, place >= share),
            "heldout": only_rows(train, (place >= share / 2) & (place < share)),
            "test": only_rows(train, place < share / 2),
        }
    if most is None:
        return found
    return found | {name: _at_most(found[name], most) for name in KEPT if name in found}


def places(data: FederatedData) -> np.ndarray:
    """[n] a number in [0, 1) for each example, which follows from its features alone."""
    parts = [_hashes(data, part) for part in slices(data.num_examples, 1 << 14)]
    return (np.concatenate([np.zeros(0, np.uint64), *parts]) >> np.uint64(11)) / 2.0**53


def _at_most(data: FederatedData, number: int) -> FederatedData:
    """Those examples of each client that have the lowest hashes, at most `number`."""
    if data.sizes.max(initial=0) <= number:
        return data
    owner = np.repeat(np.arange(data.num_clients), data.sizes)
    order = np.lexsort((places(data), owner))
    rank = np.empty_like(order)
    rank[order] = np.arange(data.num_examples) - data.offsets[owner]
    return only_rows(data, rank < number)


def _hashes(data: FederatedData, part: slice) -> np.ndarray:
    total = np.zeros(part.stop - part.start, np.uint64)
    for name, array in sorted(data.examples.items()):
        check(array.dtype.kind in "biuf", f"feature {name!r} of type {array.dtype} has no hash")
        words = _words(np.asarray(array[part]))
        for place in range(words.shape[1]):
            salt = hashlib.blake2b(f"{name}:{place}".encode(), digest_size=8).digest()
            total += _mixed(words[:, place] ^ np.uint64(int.from_bytes(salt, "little")))
    return _mixed(total)


def _words(rows: np.ndarray) -> np.ndarray:
    """The bytes of each row, least significant first, as words of 64 bits: [n, words]."""
    flat = rows.reshape(len(rows), -1).astype(rows.dtype.newbyteorder("<"))
    content = np.ascontiguousarray(flat).view(np.uint8).reshape(len(rows), -1)
    content = np.pad(content, ((0, 0), (0, -content.shape[1] % 8)))
    return np.ascontiguousarray(content).view("<u8").astype(np.uint64)


def _mixed(words: np.ndarray) -> np.ndarray:
    """The last step of SplitMix64: every bit of a word changes half of the result's."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
