# SPDX-License-Identifier: Apache-2.0
"""Images for models to see."""

import numpy as np


def images(number: int) -> dict[str, np.ndarray]:
    """The left half is bright in class 1 and dark in class 0."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 128, (number, 28, 28), np.uint8)
    y = (np.arange(number) % 2).astype(np.int32)
    x[:, :, :14] += (127 * y[:, None, None]).astype(np.uint8)
    return {"x": x, "y": y}
