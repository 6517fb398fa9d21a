# SPDX-License-Identifier: Apache-2.0
"""A task whose model is not tiny, and small enough to be trained in no time."""

import msgspec
import numpy as np

from agnosticfl import from_arrays
from agnosticfl.core.federated import Splits
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import resolve


def logistic() -> Config:
    """784 × 10 + 10 numbers: not tiny."""
    config = resolve("toy", rounds=4)
    return msgspec.structs.replace(
        config,
        data={"name": f"{__name__}:images"},
        model={"name": "logistic", "features": 784, "classes": 10},
        clients_per_round=6,
    )


def images() -> Splits:
    """The data of `logistic`, by its own name."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(80, 28, 28)).astype(np.float32)
    y = rng.integers(10, size=80, dtype=np.int32)
    data = from_arrays({"x": x, "y": y}, [i % 8 for i in range(80)], [i % 2 for i in range(80)])
    return Splits(data, data)
