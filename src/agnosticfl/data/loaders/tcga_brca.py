# SPDX-License-Identifier: Apache-2.0
"""Survival with breast cancer (TCGA-BRCA) in six regions, as FLamby ships and splits it."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from agnosticfl.data.formats.files import find_file, reading
from agnosticfl.data.formats.limits import short
from agnosticfl.data.in_memory import generator, in_pieces
from agnosticfl.data.preparation.record import Number, Preparation, read_fitting
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.errors import BadInput, check
from agnosticfl.options import Share
from agnosticfl.registry import LOADERS

DOMAINS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # FLamby's centres 0 to 5
ID, EVENT, TIME, SCALED = "pid", "E", "T", "age_at_index"
WIDTH = 39


class _Patients(NamedTuple):
    """Those whom the split names, in its order."""

    names: list[str]  # of the features
    x: np.ndarray  # [n, 39] float64
    y: np.ndarray  # [n, 2] float32: time, event
    domain: np.ndarray  # [n] int32
    split: np.ndarray  # [n]
    left_out: int


@LOADERS.add("tcga-brca")
def load(
    sources: Sequence[Path],
    *,
    risk_sets: Annotated[
        bool, "give each event those of its client who were still at risk, as the model cox needs"
    ] = False,
    heldout_fraction: Annotated[
        Share, "share of each region's training patients that is held out; FLamby has none"
    ] = 0.0,
    seed: Annotated[int, Meta(ge=0, description="chooses the patients that are held out")] = 0,
    like: Annotated[
        Path | None, "a preparation.json of public data, instead of learning the scale of the age"
    ] = None,
) -> Source:
    """brca.csv and train_test_split.csv; a region is a client and a domain.

    `y` is the days and 1 if they end with the patient's death, 0 if they end with the last news.
    """
    check(
        0 <= heldout_fraction < 1,
        f"heldout fraction is {heldout_fraction}; it must be at least 0 and below 1",
    )
    patients = _read(find_file(sources, "brca.csv"), find_file(sources, "train_test_split.csv"))
    split = _held_out(patients, heldout_fraction, seed)
    if like is None:
        preparation = _preparation(patients, split == "train")
    else:
        preparation = read_fitting(like, [Number(name) for name in patients.names])
    scales = [(c.mean, c.deviation) for c in preparation.columns if isinstance(c, Number)]
    mean, deviation = np.array(scales).T
    x = ((patients.x - mean) / deviation).astype(np.float32)
    features = {"x": x, "y": patients.y}
    if risk_sets:
        features |= at_risk(x, patients.y, patients.domain, split)

    def rows() -> Iterator[Rows]:
        for name in np.unique(split).tolist():
            own = split == name
            clients = [DOMAINS[i] for i in patients.domain[own].tolist()]
            some = {key: values[own] for key, values in features.items()}
            yield from in_pieces(name, clients, patients.domain[own], some)

    return Source(
        name="tcga-brca",
        licence="public (NCI); FLamby's tables MIT",
        domains=DOMAINS,
        features={k: Feature(v.dtype.name, v.shape[1:]) for k, v in features.items()},
        rows=rows,
        total=len(split),
        left_out={"patients whom the split does not name": patients.left_out},
        preparation=preparation,
        given=() if like is None else ("preparation",),
    )


def _read(table: Path, folds: Path) -> _Patients:
    rows = {row[ID]: row for row in _rows(table, (ID, EVENT, TIME))}
    fate = {row[ID]: _fold(row["fold2"], folds) for row in _rows(folds, (ID, "fold2"))}
    missing = fate.keys() - rows.keys()
    check(not missing, f"{folds} names {min(missing, default='')}, whom {table} does not have")
    check(bool(fate), f"{folds} names no patient")
    names = [name for name in next(iter(rows.values())) if name not in (ID, EVENT, TIME)]
    check(len(names) == WIDTH, f"{table} has {len(names)} features; {WIDTH} are needed")
    numbers = np.array([_numbers(rows[p], [*names, TIME, EVENT], table) for p in fate])
    return _Patients(
        names,
        numbers[:, :WIDTH],
        numbers[:, WIDTH:].astype(np.float32),
        np.array([domain for _, domain in fate.values()], np.int32),
        np.array([split for split, _ in fate.values()], "<U7"),
        len(rows) - len(fate),
    )


def _rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, str]]:
    with reading(path), path.open(encoding="utf-8", newline="") as stream:
        table = csv.DictReader(stream, strict=True)
        for name in needed:
            check(name in (table.fieldnames or ()), f"{path}: there is no column {name!r}")
        for row in table:
            # csv has None for a field too many, as a name, and for one too few, as a value.
            fine = None not in row and None not in row.values()
            check(fine, f"{path}: line {table.line_num} has not as many fields as the header")
            yield row


def _fold(text: str, path: Path) -> tuple[str, int]:
    """`train_3` as ("train", 3)."""
    split, _, centre = text.partition("_")
    fine = split in ("train", "test") and centre in map(str, range(len(DOMAINS)))
    check(fine, f"{path}: fold2 is {short(text)}; it must be train_0 to test_{len(DOMAINS) - 1}")
    return split, int(centre)


def _numbers(row: Mapping[str, str], names: Sequence[str], path: Path) -> list[float]:
    try:
        values = [float(row[name]) for name in names]
    except ValueError:
        raise BadInput(f"{path}: a value of {row[ID]} is no number") from None
    fine = all(map(math.isfinite, values)) and values[-2] >= 0 and values[-1] in (0, 1)
    check(fine, f"{path}: {row[ID]} needs finite numbers, T of at least 0 and E of 0 or 1")
    return values


def _held_out(patients: _Patients, fraction: float, seed: int) -> np.ndarray:
    """Splits, with a share of each region's training patients held out, of both outcomes."""
    split = patients.split.copy()
    for domain in range(len(DOMAINS)):
        for event in (0, 1):
            own = (split == "train") & (patients.domain == domain) & (patients.y[:, 1] == event)
            rows = generator(seed, domain, event).permutation(np.flatnonzero(own))
            split[rows[: round(fraction * len(rows))]] = "heldout"
    return split


def _preparation(patients: _Patients, training: np.ndarray) -> Preparation:
    """The age is scaled by all training patients; the other features are 0 or 1 and stay so."""
    columns = [Number(name) for name in patients.names]
    if SCALED in patients.names:
        place = patients.names.index(SCALED)
        ages = patients.x[training, place]
        columns[place] = Number(SCALED, float(ages.mean()), float(ages.std()) or 1.0, ages.mean())
    return Preparation(tuple(columns))


def at_risk(
    x: np.ndarray, y: np.ndarray, domain: np.ndarray, split: np.ndarray
) -> dict[str, np.ndarray]:
    """Of each event, the others of its client and split whose time is not shorter."""
    others = [np.zeros(0, int)] * len(x)
    for i in np.flatnonzero(y[:, 1] == 1).tolist():
        there = (domain == domain[i]) & (split == split[i]) & (y[:, 0] >= y[i, 0])
        there[i] = False
        others[i] = np.flatnonzero(there)
    count = np.array([len(rows) for rows in others], np.int32)
    features = np.zeros((len(x), max(1, count.max()), x.shape[1]), np.float32)
    for i, rows in enumerate(others):
        features[i, : len(rows)] = x[rows]
    return {"at_risk": features, "at_risk_count": count}
