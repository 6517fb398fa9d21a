# SPDX-License-Identifier: Apache-2.0
"""Rows to write to a store, whose numbers tell where they belong."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agnosticfl.data.source import Feature, Rows, Source

FEATURES = {"x": Feature("float32", (2,)), "y": Feature("int32", ())}


def rows(split: str, clients: Sequence[str], domain: Sequence[int], first: int = 0) -> Rows:
    """Example i has x = (i, −i) and y = i, counted from `first`."""
    i = np.arange(first, first + len(clients))
    x = np.stack([i, -i], axis=1).astype(np.float32)
    return Rows(split, clients, np.array(domain, np.int32), {"x": x, "y": i.astype(np.int32)})


def source(*pieces: Rows, **changes: Any) -> Source:
    """These rows, as a loader would give them."""
    made = Source("made up", "CC0", ("us", "ar"), FEATURES, lambda: iter(pieces))
    return made._replace(**changes)
