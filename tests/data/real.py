# SPDX-License-Identifier: Apache-2.0
"""The real data sets, where a machine has them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("AGNOSTICFL_DATA", Path(__file__).parents[3] / "shared" / "data"))


def real_data(name: str) -> Path:
    """The folder of one real data set; skips the test where it is absent."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"needs the real data set {name!r}; set AGNOSTICFL_DATA to its parent folder")
    return FOLDER / name
