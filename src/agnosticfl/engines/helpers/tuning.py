# SPDX-License-Identifier: Apache-2.0
"""How many lanes are fastest here: a few numbers are tried, and what was found is remembered."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from agnosticfl.files import read_json, write_json

Seconds: TypeAlias = dict[str, float]  # number of lanes -> seconds of a round's training pass

# (what the timing depends on, numbers of lanes, a stopwatch for one of them) -> their seconds
Tuner: TypeAlias = Callable[[Any, Sequence[int], Callable[[int], float]], Seconds]


def stopwatch(memory: Path | None = None) -> Tuner:
    """A tuner that measures, or knows from the file `memory` what was measured before.

    With a memory the same task gets the same number of lanes again, hence the same bits.
    """

    def tune(case: Any, candidates: Sequence[int], seconds: Callable[[int], float]) -> Seconds:
        known = read_json(memory) if memory is not None and memory.exists() else {}
        key = json.dumps([case, list(candidates)])
        if key not in known:
            known[key] = {str(number): seconds(number) for number in candidates}
            if memory is not None:
                memory.parent.mkdir(parents=True, exist_ok=True)
                write_json(memory, known)
        return known[key]

    return tune


def fastest(seconds: Seconds) -> int:
    """The number of lanes with the fewest seconds."""
    return int(min(seconds, key=lambda number: seconds[number]))
