# SPDX-License-Identifier: Apache-2.0
"""For sources whose files fit in memory: random clients, and rows in pieces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias

import numpy as np

from agnosticfl.data.source import SPLITS, Rows
from agnosticfl.errors import check

_PIECE = 2048  # examples


HeldoutOfTraining: TypeAlias = Annotated[
    float, "share of the training clients that is kept apart as the heldout split"
]


def random_clients(split: str, rows: int, clients: int, seed: int) -> list[str]:
    """Spreads `rows` examples evenly over `clients` clients at random: [rows] client ids.

    A pure function of its arguments. Sizes differ by at most one example, and the clients of
    different splits are different ones.
    """
    check(
        1 <= clients <= rows,
        f"clients is {clients}; it must be from 1 to the number of {split} examples, {rows}",
    )
    owner = generator(seed, SPLITS.index(split)).permutation(rows) % clients
    width = len(str(clients - 1))
    return [f"{split}-{k:0{width}d}" for k in owner.tolist()]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Random numbers that depend on the user's seed and on what they are for."""
    check(seed >= 0, f"seed is {seed}; it must be 0 or more")
    return np.random.default_rng([seed, *purpose])


def in_pieces(
    split: str, clients: Sequence[str], domain: np.ndarray, features: Mapping[str, np.ndarray]
) -> Iterator[Rows]:
    """The rows of one split, a few thousand at a time."""
    for start in range(0, len(clients), _PIECE):
        piece = slice(start, start + _PIECE)
        yield Rows(
            split,
            clients[piece],
            domain[piece],
            {name: values[piece] for name, values in features.items()},
        )


def with_heldout(
    split: str,
    clients: Sequence[str],
    domain: np.ndarray,
    features: Mapping[str, np.ndarray],
    fraction: float,
) -> Iterator[Rows]:
    """As `in_pieces`, but this fraction of the training clients is the heldout split."""
    names = sorted(set(clients)) if split == "train" else []
    apart = np.isin(clients, names[: round(fraction * len(names))])
    for name, kept in (("heldout", apart), (split, ~apart)):
        own = {key: values[kept] for key, values in features.items()}
        yield from in_pieces(name, np.asarray(clients)[kept].tolist(), domain[kept], own)


def check_heldout(fraction: float, clients: int) -> None:
    """Refuses a fraction that leaves no client for training."""
    check(
        fraction >= 0 and round(fraction * clients) < clients,
        f"heldout fraction is {fraction}; it must be at least 0 and leave a client to train on",
    )
