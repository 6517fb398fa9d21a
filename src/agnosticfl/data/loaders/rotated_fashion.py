# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST in three orientations, one of which few clients have, or has wrong labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from agnosticfl.data.formats.idx import read_labelled_images
from agnosticfl.data.in_memory import generator, random_clients
from agnosticfl.data.orientations import (
    DOMAINS,
    FEATURES,
    HeldoutOfDomains,
    Oriented,
    Sideways,
    UpsideDown,
    even_clients,
    training_clients,
    turned_rows,
)
from agnosticfl.data.source import Rows, Source
from agnosticfl.errors import check
from agnosticfl.options import Share
from agnosticfl.registry import LOADERS

CLASSES = 10


@LOADERS.add("rotated-fashion")
def load(
    sources: Sequence[Path],
    *,
    sideways: Sideways = 0.07,
    upside_down: UpsideDown = 0.03,
    random_labels: Annotated[
        Share, "share of the upside-down clients' labels, other than in test, drawn at random"
    ] = 0.0,
    images: Annotated[
        int | None, Meta(ge=1, description="training images used, drawn at random; all if left out")
    ] = None,
    images_per_client: Annotated[int, Meta(ge=1, description="of training and test clients")] = 100,
    heldout_fraction: HeldoutOfDomains = 0.2,
    seed: Annotated[int, Meta(ge=0, description="seed of every random choice")] = 0,
) -> Source:
    """All ten classes from the idx files; the domain is the client's orientation.

    Random labels are drawn from all classes, so a tenth of them is right by chance. Test labels are
    those of the files.
    """
    (x, y), (test_x, test_y) = (read_labelled_images(sources, part) for part in ("train", "t10k"))
    available, used = len(y), len(y) if images is None else images
    check(used <= available, f"images is {used}; there are {available} training images")
    drawn = np.sort(generator(seed, 12).permutation(available)[:used])
    x, y = x[drawn], y[drawn]
    train = training_clients(
        _clients("train", used, images_per_client, seed),
        sideways,
        upside_down,
        heldout_fraction,
        seed,
    )
    test = even_clients(_clients("test", len(test_y), images_per_client, seed), seed)
    y = _with_random_labels(y, train, random_labels, seed)

    def rows() -> Iterator[Rows]:
        yield from turned_rows("train", train, x, y)
        yield from turned_rows("test", test, test_x, test_y)

    not_drawn = available - used
    return Source(
        name="rotated-fashion",
        licence="MIT",
        domains=(*DOMAINS[:-1], f"{DOMAINS[-1]} (noisy)") if random_labels else DOMAINS,
        features=FEATURES,
        rows=rows,
        total=used + len(test_y),
        left_out={"training images not drawn": not_drawn} if not_drawn else {},
    )


def _clients(split: str, rows: int, per_client: int, seed: int) -> list[str]:
    return random_clients(split, rows, max(1, round(rows / per_client)), seed)


def _with_random_labels(labels: np.ndarray, part: Oriented, share: float, seed: int) -> np.ndarray:
    rng = generator(seed, 13)
    chosen = (part.domain == len(DOMAINS) - 1) & (rng.random(len(labels)) < share)
    drawn = rng.integers(0, CLASSES, len(labels), labels.dtype)
    return np.where(chosen, drawn, labels)
