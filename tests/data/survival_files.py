# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients in FLamby's tables of TCGA-BRCA."""

from pathlib import Path
from typing import NamedTuple

FEATURES = ("age_at_index", *(f"feature{k}" for k in range(38)))


class Patient(NamedTuple):
    name: str
    fold: str
    age: int
    event: int
    days: float


def patients(number: int) -> list[Patient]:
    """So many train and half as many test in each region; the older, the sooner."""
    return [
        Patient(f"{part}-{centre}-{k}", f"{part}_{centre}", 40 + k, int(k % 4 > 0), 2000 - 50 * k)
        for centre in range(6)
        for part, count in (("train", number), ("test", number // 2))
        for k in range(count)
    ]


def write(folder: Path, known: list[Patient], more: str = "") -> Path:
    zeros = ",".join(["0"] * 38)
    table = [",".join(["pid", *FEATURES, "E", "T"])]
    table += [f"{p.name},{p.age},{zeros},{p.event}.0,{p.days}" for p in known]
    (folder / "brca.csv").write_text("\n".join([*table, more]))
    folds = ["pid,fold,fold2", *(f"{p.name},{p.fold[:-2]},{p.fold}" for p in known)]
    (folder / "train_test_split.csv").write_text("\n".join(folds))
    return folder
