# SPDX-License-Identifier: Apache-2.0
"""MNIST by writer in three orientations: all digits of a writer are turned the same way."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from agnosticfl.data.loaders.mnist_writers import read_writers
from agnosticfl.data.orientations import (
    DOMAINS,
    FEATURES,
    HeldoutOfDomains,
    Sideways,
    UpsideDown,
    even_clients,
    training_clients,
    turned_rows,
)
from agnosticfl.data.source import Rows, Source
from agnosticfl.registry import LOADERS


@LOADERS.add("rotated-writers")
def load(
    sources: Sequence[Path],
    *,
    sideways: Sideways = 0.07,
    upside_down: UpsideDown = 0.03,
    heldout_fraction: HeldoutOfDomains = 0.2,
    seed: Annotated[int, Meta(ge=0, description="seed of every random choice")] = 0,
) -> Source:
    """The files of `mnist-writers`; a client is a writer, the domain is its orientation."""
    parts = read_writers(sources)
    names = {split: [f"{w:04d}" for w in part.writer.tolist()] for split, part in parts.items()}
    oriented = {
        "train": training_clients(names["train"], sideways, upside_down, heldout_fraction, seed),
        "test": even_clients(names["test"], seed),
    }

    def rows() -> Iterator[Rows]:
        for split, part in parts.items():
            yield from turned_rows(split, oriented[split], part.images, part.labels)

    return Source(
        name="rotated-writers",
        licence="BSD-3-Clause (QMNIST)",
        domains=DOMAINS,
        features=FEATURES,
        rows=rows,
        total=sum(len(part.writer) for part in parts.values()),
    )
