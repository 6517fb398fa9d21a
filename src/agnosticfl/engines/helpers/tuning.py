# SPDX-License-Identifier: Apache-2.0
"""How many lanes are fastest here: reckoned where that is plain, else tried, and remembered."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from agnosticfl.files import read_json, write_json

Seconds: TypeAlias = dict[str, float]  # number of lanes -> seconds of a round's training pass

# (what the timing depends on, numbers of lanes, a stopwatch for one of them) -> their seconds
Tuner: TypeAlias = Callable[[Any, Sequence[int], Callable[[int], float]], Seconds]


# What a step costs before its lanes' work, in steps of one lane: an accelerator starts every kernel
# of a step, however little there is for it to do. Measured on an H200: about 10 for an LSTM.
OVERHEADS = (2.0, 5.0, 10.0, 20.0)
SAME = 0.05  # of a round's time: less than that is not worth a compilation


def may_be_fastest(costs: Mapping[int, Callable[[float], float]]) -> list[int]:
    """The numbers of lanes that only a measurement can tell apart; one, if it is plain.

    A number that no overhead makes slower than the best one, but for a little, is taken as it is.

    Args:
      costs: number of lanes -> what a round costs with it, as a function of a step's overhead.
    """
    best = {r: min(cost(r) for cost in costs.values()) for r in OVERHEADS}
    regret = {lanes: max(cost(r) / best[r] - 1 for r in OVERHEADS) for lanes, cost in costs.items()}
    safest = min(regret, key=lambda lanes: regret[lanes])
    if regret[safest] <= SAME:
        return [safest]
    return [n for n, cost in costs.items() if any(cost(r) <= best[r] for r in OVERHEADS)]


def stopwatch(memory: Path | None = None, measuring: bool = True) -> Tuner:
    """A tuner that measures, or knows from the file `memory` what was measured before.

    With a memory the same task gets the same number of lanes again, hence the same bits. Without
    `measuring`, what is not known is a `LookupError`.
    """

    def tune(case: Any, candidates: Sequence[int], seconds: Callable[[int], float]) -> Seconds:
        known = read_json(memory) if memory is not None and memory.exists() else {}
        key = json.dumps([case, list(candidates)])
        if key not in known and not measuring:
            raise LookupError("nobody has measured it")
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
