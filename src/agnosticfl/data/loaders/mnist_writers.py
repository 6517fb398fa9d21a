# SPDX-License-Identifier: Apache-2.0
"""MNIST by writer: QMNIST's label files say who wrote each digit, and in which NIST series."""

import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from agnosticfl.data.formats.idx import find_idx, read_idx, read_labelled_images
from agnosticfl.data.in_memory import generator, in_pieces
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.errors import BadInput, check
from agnosticfl.registry import LOADERS

DOMAINS = ("student", "employee")
STUDENT, EMPLOYEE = 0, 1
_CLASS, _SERIES, _WRITER, _COLUMNS = 0, 1, 2, 8  # of a QMNIST label row


class Part(NamedTuple):
    """The files of one split, row for row."""

    images: np.ndarray  # [n, 28, 28] uint8
    labels: np.ndarray  # [n] int32
    writer: np.ndarray  # [n] int32
    domain: np.ndarray  # [n] int32


@LOADERS.add("mnist-writers")
def load(
    sources: Sequence[Path],
    *,
    student_writers: Annotated[
        int | None, "keep a random N of the student training writers (50: the paper's imbalance)"
    ] = None,
    heldout_fraction: Annotated[
        float, "move this share of each domain's training writers to the heldout split"
    ] = 0.0,
    seed: Annotated[int, "seed of the two random choices"] = 0,
) -> Source:
    """MNIST idx files with QMNIST label files; a client is a writer."""
    train, test = read_writers(sources).values()
    dropped = _students_to_drop(train, student_writers, seed)
    kept = _select(train, ~np.isin(train.writer, dropped))
    heldout = np.isin(kept.writer, _heldout_writers(kept, heldout_fraction, seed))
    splits = {"train": _select(kept, ~heldout), "heldout": _select(kept, heldout), "test": test}

    def rows() -> Iterator[Rows]:
        for split, part in splits.items():
            clients = [f"{writer:04d}" for writer in part.writer.tolist()]
            yield from in_pieces(split, clients, part.domain, {"x": part.images, "y": part.labels})

    not_drawn = len(train.writer) - len(kept.writer)
    return Source(
        name="mnist-writers",
        licence="BSD-3-Clause (QMNIST)",
        domains=DOMAINS,
        features={"x": Feature("uint8", (28, 28)), "y": Feature("int32", ())},
        rows=rows,
        total=len(kept.writer) + len(test.writer),
        labels=tuple(string.digits),
        left_out={"images of student writers not drawn": not_drawn} if not_drawn else {},
    )


def read_writers(sources: Sequence[Path]) -> dict[str, Part]:
    """Split -> its images, train first; no writer is in both."""
    parts = {split: _read_part(sources, split) for split in ("train", "test")}
    both = np.intersect1d(parts["train"].writer, parts["test"].writer)
    if len(both):
        raise BadInput(f"writer {both[0]} is in both label files; the test writers must be others")
    return parts


def _read_part(sources: Sequence[Path], split: str) -> Part:
    images, labels = read_labelled_images(sources, "train" if split == "train" else "t10k")
    path = find_idx(sources, f"qmnist-{split}-labels", "idx2-int")
    table = read_idx(path, "int32", (None, _COLUMNS))
    # QMNIST's test file goes on after MNIST's 10,000 rows with the 50,000 that MNIST left out.
    enough = len(table) == len(images) if split == "train" else len(table) >= len(images)
    check(enough, f"{path} has {len(table)} rows for {len(images)} {split} images")
    table = table[: len(images)]
    _check_rows(path, "class", table[:, _CLASS], table[:, _CLASS] == labels, "MNIST's label")
    series = table[:, _SERIES]
    _check_rows(path, "HSF series", series, (series >= 0) & (series <= 4), "0 to 4")
    # Series 4 was written by high-school students, 0 to 3 by employees of the census bureau.
    domain = np.where(series == 4, STUDENT, EMPLOYEE).astype(np.int32)
    return Part(images, labels.astype(np.int32), table[:, _WRITER], domain)


def _check_rows(path: Path, what: str, column: np.ndarray, good: np.ndarray, rule: str) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        place = f"{path}: row {bad[0]} (offset {12 + 4 * _COLUMNS * bad[0]})"
        raise BadInput(f"{place} has {what} {column[bad[0]]}; it must be {rule}")


def _students_to_drop(part: Part, keep: int | None, seed: int) -> np.ndarray:
    students = np.unique(part.writer[part.domain == STUDENT])
    if keep is None:
        return students[:0]
    check(
        1 <= keep <= len(students),
        f"student writers is {keep}; it must be from 1 to {len(students)}, all that train has",
    )
    return generator(seed, 0).permutation(students)[keep:]


def _heldout_writers(part: Part, fraction: float, seed: int) -> np.ndarray:
    """A random share of the writers, the same share in each domain."""
    check(0 <= fraction < 1, f"heldout fraction is {fraction}; it must be at least 0 and below 1")
    chosen: list[np.ndarray] = []
    for i, name in enumerate(DOMAINS):
        writers = np.unique(part.writer[part.domain == i])
        count = round(fraction * len(writers))
        check(
            count < len(writers) or len(writers) == 0,
            f"heldout fraction {fraction} leaves no {name} writer of {len(writers)} for training",
        )
        chosen.append(generator(seed, 1, i).permutation(writers)[:count])
    return np.concatenate(chosen)


def _select(part: Part, keep: np.ndarray) -> Part:
    return Part(*(column[keep] for column in part))
