# SPDX-License-Identifier: Apache-2.0
"""What tests read from a run folder."""

from pathlib import Path
from typing import Any

from agnosticfl.runs.records import read_records

TIMES = ("seconds", "time")


def results(folder: Path) -> list[dict[str, Any]]:
    """All that a run wrote down, except how long it took."""
    return [{k: v for k, v in r.items() if k not in TIMES} for r in read_records(folder)]
