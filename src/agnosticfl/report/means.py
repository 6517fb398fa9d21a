# SPDX-License-Identifier: Apache-2.0
"""Means of what is known."""

import numpy as np


def known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis of what is not NaN; NaN where nothing is."""
    known = ~np.isnan(values)
    number = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)
