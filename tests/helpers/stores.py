# SPDX-License-Identifier: Apache-2.0
"""Stores of every kind of example, and runs on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from agnosticfl.data.loaders import synthetic
from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.source import Source
from agnosticfl.data.store import write_store
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run

ROLES: dict[str, Any] = {"client": "patient", "domain": "hospital", "split": "part"}
FEATURES = 6  # age and whether it is missing, dose, three kinds


def patients(rows: int = 120) -> Any:
    """A table as people have it: a category, missing values, a class and a number to predict."""
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 10, rows), rng.normal(size=rows)
    kind = rng.choice(["a", "b", "c"], rows)
    risk = (age - 60) / 10 + dose + (kind == "c")
    age[::7] = np.nan
    part = np.array(["train", "train", "heldout", "test"])[np.arange(rows) % 4]
    return pd.DataFrame(
        {
            "patient": [f"{p}{k % 5}" for k, p in enumerate(part)],
            "hospital": np.where(np.arange(rows) % 3 == 0, "village", "city"),
            "part": part,
            "age": age,
            "dose": dose,
            "kind": kind,
            "ill": np.where(risk + rng.normal(size=rows) > 0, "yes", "no"),
            "days": (10 + 3 * risk).round(2),
        }
    )


def images(rows: int = 48) -> dict[str, Any]:
    """Images of 8 × 7 whose brightness tells their class."""
    rng = np.random.default_rng(1)
    label = rng.integers(3, size=rows)
    pixels = rng.integers(0, 40, size=(rows, 8, 7)) + 80 * label[:, None, None]
    part = np.array(["train", "train", "heldout", "test"])[np.arange(rows) % 4]
    return {
        "patient": [f"{p}{k % 3}" for k, p in enumerate(part)],
        "hospital": np.array(["a", "b"])[np.arange(rows) // 4 % 2],
        "part": part,
        "pixels": pixels.astype(np.uint8),
        "kind": np.array(["dark", "grey", "light"])[label],
    }


def source(kind: str) -> Source:
    """What a store of this kind is made from."""
    table = ["age", "dose", "kind"]
    if kind == "classes":
        return from_frame(patients(), **ROLES, features=table, label="ill")
    if kind == "numbers":
        return from_frame(patients(), **ROLES, features=table, label="days")
    if kind == "images":
        return from_frame(images(), **ROLES, input="pixels", label="kind")
    options: Any = {"clients": 12, "examples": 6, "words": 20, "heldout_fraction": 0.2}
    return synthetic.load(kind="sentences", test_fraction=0.3, **options)


def trained(folder: Path, kind: str, model: dict[str, Any], metric: str, **settings: Any) -> Path:
    """The run folder of a model that was trained for a few rounds on data of this kind."""
    if not (folder / kind).exists():
        write_store(source(kind), folder / kind)
    task: Any = {
        "task": kind,
        "data": {"name": "store", "path": str(folder / kind)},
        "model": model,
        "rounds": 4,
        "clients_per_round": 3,
        "batch_size": 8,
        "client_optimizer": {"name": "sgd", "learning_rate": 0.3},
        "evaluation_every": 2,
        "metric": metric,
        "engine": "steps",  # which is the first to be compiled
        **settings,
    }
    out = folder / "runs" / model["name"].replace(":", ".")
    run(resolve(task), out)
    return out
