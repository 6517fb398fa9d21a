# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST as in the AFL paper: three classes that are also the domains, random clients."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from agnosticfl.data.formats.idx import read_labelled_images
from agnosticfl.data.in_memory import HeldoutOfTraining, check_heldout, random_clients, with_heldout
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.registry import LOADERS

_CLASSES = {"t-shirt": 0, "pullover": 2, "shirt": 6}  # name -> label in the files
_PARTS = {"train": "train", "test": "t10k"}  # split -> start of the file names


@LOADERS.add("fashion-mnist")
def load(
    sources: Sequence[Path],
    *,
    clients: Annotated[int, "clients of each split; examples are spread evenly at random"] = 100,
    heldout_fraction: HeldoutOfTraining = 0.0,
    seed: Annotated[int, "seed of the random clients"] = 0,
) -> Source:
    """T-shirts, pullovers and shirts from the idx files; y = 0, 1, 2 is also the domain."""
    check_heldout(heldout_fraction, clients)
    parts = {split: read_labelled_images(sources, part) for split, part in _PARTS.items()}
    kept = {split: _three_classes(*part) for split, part in parts.items()}
    owners = {split: random_clients(split, len(y), clients, seed) for split, (_, y) in kept.items()}

    def rows() -> Iterator[Rows]:
        for split, (images, y) in kept.items():
            yield from with_heldout(
                split, owners[split], y, {"x": images, "y": y}, heldout_fraction
            )

    total = sum(len(y) for _, y in kept.values())
    return Source(
        name="fashion-mnist",
        licence="MIT",
        domains=tuple(_CLASSES),
        features={"x": Feature("uint8", (28, 28)), "y": Feature("int32", ())},
        rows=rows,
        total=total,
        labels=tuple(_CLASSES),
        left_out={"images of other classes": sum(len(y) for _, y in parts.values()) - total},
    )


def _three_classes(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wanted = np.array(list(_CLASSES.values()))
    keep = np.isin(labels, wanted)
    return images[keep], np.searchsorted(wanted, labels[keep]).astype(np.int32)
