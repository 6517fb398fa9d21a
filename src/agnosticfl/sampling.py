# SPDX-License-Identifier: Apache-2.0
"""Who takes part in round t and in which order examples come: pure functions of (seed, t)."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from agnosticfl.errors import check

Sampler: TypeAlias = Callable[[int], np.ndarray]  # round t -> indices of the clients C_t


def uniform(num_clients: int, clients_per_round: int, seed: int) -> Sampler:
    """C_t is `clients_per_round` (c) different clients, each set equally likely."""
    check(
        1 <= clients_per_round <= num_clients,
        f"clients per round (c) is {clients_per_round};"
        f" it must be from 1 to the number of clients, {num_clients}",
    )

    def everyone(_: int) -> np.ndarray:
        return np.arange(num_clients)

    def sample(t: int) -> np.ndarray:
        return np.random.default_rng([seed, t]).choice(
            num_clients, clients_per_round, replace=False, shuffle=False
        )

    return everyone if clients_per_round == num_clients else sample


def example_order(
    seed: int, t: int | np.ndarray, clients: np.ndarray, sizes: np.ndarray, length: int
) -> np.ndarray:
    """A fresh shuffle of each client's examples for round t, [clients, length].

    `t` may be an array with a round for each client.

    Row k holds the numbers 0 … sizes[k]−1 in random order first, then 0 as filling. The order of
    one client depends on (seed, t, client) alone: not on its cohort, not on `length`.
    """
    position = np.arange(length)
    filling = position >= sizes[:, None]
    bits = random_bits(seed, np.reshape(t, (-1, 1)), clients[:, None], position)
    # 32 random bits, then the example's own number: a sort of plain numbers, which is faster than
    # one that has to carry the examples along.
    bits = bits >> np.uint64(32) << np.uint64(32) | position.astype(np.uint64)
    bits[filling] = np.iinfo(np.uint64).max
    bits.sort(axis=1)
    bits[filling] = 0
    return (bits & np.uint64(2**32 - 1)).astype(np.int64)


def random_bits(*words: int | np.ndarray) -> np.ndarray:
    """64 random bits for each tuple of (broadcast) integers: SplitMix64, word after word.

    Counter-based, so the bits of millions of clients need no state, come at once as one array
    operation, and are the same in every process and language.
    """
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            step = np.asarray(word).astype(np.uint64) + np.uint64(1)
            state = state + step * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state
