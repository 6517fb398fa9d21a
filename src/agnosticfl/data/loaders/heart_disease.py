# SPDX-License-Identifier: Apache-2.0
"""UCI heart disease, four hospitals, with the columns, scales and split of FLamby's benchmark."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from agnosticfl.data.formats.files import find_file, reading
from agnosticfl.data.formats.limits import short
from agnosticfl.data.in_memory import in_pieces
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.errors import BadInput, check
from agnosticfl.options import Share
from agnosticfl.registry import LOADERS

DOMAINS = ("cleveland", "hungarian", "switzerland", "va")
FIELDS, DROPPED = 14, (10, 11, 12)  # slope, ca and thal, which most hospitals did not write down
# Of the columns that are left: numbers as they are, and categories without their first level.
NUMBERS = (0, 1, 3, 4, 5, 7, 8, 9)  # age, sex, trestbps, chol, fbs, thalach, exang, oldpeak
LEVELS = {2: (2, 3, 4), 6: (1, 2)}  # cp, restecg
WIDTH = len(NUMBERS) + sum(map(len, LEVELS.values()))
TRAIN_FRACTION, SPLIT_SEED = 0.66, 43  # FLamby's


class _Hospital(NamedTuple):
    x: np.ndarray  # [n, WIDTH] float64
    y: np.ndarray  # [n] int32
    left_out: int  # patients with a missing value


@LOADERS.add("heart-disease")
def load(
    sources: Sequence[Path],
    *,
    heldout_fraction: Annotated[
        Share, "share of each hospital's training patients that is held out; FLamby has none"
    ] = 0.0,
    seed: Annotated[int, Meta(ge=0, description="chooses the patients that are held out")] = 0,
) -> Source:
    """processed.cleveland.data and its three siblings; a hospital is a client and a domain.

    Patients without one of the values are left out. Numbers are scaled by the mean and deviation of
    the hospital's own training patients, y is 1 for any disease.
    """
    check(
        0 <= heldout_fraction < 1,
        f"heldout fraction is {heldout_fraction}; it must be at least 0 and below 1",
    )
    hospitals = [_read(find_file(sources, f"processed.{name}.data")) for name in DOMAINS]
    splits = [_splits(hospital.y, heldout_fraction, seed) for hospital in hospitals]

    def rows() -> Iterator[Rows]:
        for domain, (hospital, split) in enumerate(zip(hospitals, splits, strict=True)):
            x = _scaled(hospital.x, split == "train")
            for name in np.unique(split).tolist():
                own = split == name
                clients = [DOMAINS[domain]] * int(own.sum())
                features = {"x": x[own], "y": hospital.y[own]}
                yield from in_pieces(
                    name, clients, np.full(len(clients), domain, np.int32), features
                )

    return Source(
        name="heart-disease",
        licence="CC BY 4.0 (UCI)",
        domains=DOMAINS,
        features={"x": Feature("float32", (WIDTH,)), "y": Feature("int32", ())},
        rows=rows,
        total=sum(len(hospital.y) for hospital in hospitals),
        left_out={"patients with a missing value": sum(h.left_out for h in hospitals)},
        labels=("no disease", "disease"),
    )


def _read(path: Path) -> _Hospital:
    with reading(path):
        lines = path.read_text("ascii").splitlines()
    patients = [
        _patient(line, f"{path}: line {number}") for number, line in enumerate(lines, 1) if line
    ]
    known = np.array([p for p in patients if p is not None])
    check(len(known) > 1, f"{path}: fewer than two patients have all values")
    one_hot = [known[:, [column]] == np.array(levels) for column, levels in LEVELS.items()]
    return _Hospital(
        np.concatenate([known[:, NUMBERS], *one_hot], axis=1),
        (known[:, -1] != 0).astype(np.int32),
        len(patients) - len(known),
    )


def _patient(line: str, place: str) -> list[float] | None:
    """The eleven values that are used; None if one of them is missing."""
    fields = line.split(",")
    check(len(fields) == FIELDS, f"{place} has {len(fields)} fields; {FIELDS} are needed")
    used = [field.strip() for i, field in enumerate(fields) if i not in DROPPED]
    if "?" in used:
        return None
    try:
        values = [float(field) for field in used]
    except ValueError:
        raise BadInput(f"{place}: {short(line)} are not all numbers or ?") from None
    for column, levels in LEVELS.items():
        level = values[column]
        # The level that is left out is the one below the first.
        check(
            level in (levels[0] - 1, *levels),
            f"{place}: column {column} is {level:g}; allowed: {levels[0] - 1} to {levels[-1]}",
        )
    return values


def _splits(y: np.ndarray, heldout: float, seed: int) -> np.ndarray:
    """The split of each patient of a hospital."""
    split = np.full(len(y), "train", "<U7")
    split[apart(y, TRAIN_FRACTION, SPLIT_SEED)] = "test"
    rest = np.flatnonzero(split == "train")
    if heldout > 0:
        split[rest[apart(y[rest], 1 - heldout, seed)]] = "heldout"
    return split


def apart(y: np.ndarray, train_fraction: float, seed: int) -> np.ndarray:
    """The rows that scikit-learn's `train_test_split` puts into the test part.

    Stratified by y if there are several classes of more than two rows each. The same numbers are
    drawn from NumPy's RandomState in the same order, so the rows are the same ones.
    """
    rng = np.random.RandomState(seed)
    train = math.floor(train_fraction * len(y))
    test = math.ceil((1 - train_fraction) * len(y))
    labels, counts = np.unique(y, return_counts=True)
    if len(counts) < 2 or counts.min() <= 2:
        return rng.permutation(len(y))[:test]
    in_train = _shares(counts, train, rng)
    in_test = _shares(counts - in_train, test, rng)
    rows: list[np.ndarray] = []
    for label, first, number in zip(labels, in_train, in_test, strict=True):
        own = np.flatnonzero(y == label)
        rows.append(own[rng.permutation(len(own))][first : first + number])
    return np.concatenate(rows)


def _shares(counts: np.ndarray, number: int, rng: np.random.RandomState) -> np.ndarray:
    """How many of each class are drawn: in proportion, and where fractions tie by chance."""
    exact = counts / counts.sum() * number
    shares = np.floor(exact)
    remainder = exact - shares
    left = int(number - shares.sum())
    for value in np.unique(remainder)[::-1]:
        if left <= 0:
            break
        tied = np.flatnonzero(remainder == value)
        chosen = rng.choice(tied, size=min(len(tied), left), replace=False)
        shares[chosen] += 1
        left -= len(chosen)
    return shares.astype(int)


def _scaled(x: np.ndarray, training: np.ndarray) -> np.ndarray:
    mean, deviation = x[training].mean(axis=0), x[training].std(axis=0, ddof=1)
    # What all training patients of a hospital share tells nothing there: cholesterol is 0 in one.
    known = np.where(deviation > 0, deviation, 1.0)
    return np.where(deviation > 0, (x - mean) / known, 0.0).astype(np.float32)
