# SPDX-License-Identifier: Apache-2.0
"""The axes of a search's grid: from `--keys` to values, and how an axis goes on beyond its ends."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.errors import check
from agnosticfl.runs.config import as_text
from agnosticfl.runs.resolve import NOT_OF_A_TASK
from agnosticfl.runs.tasks import parse_set

Setting: TypeAlias = tuple[Any, ...]  # a value of each axis

# What a search must not choose: what it is judged by, and on what.
NOT_SEARCHED = (*NOT_OF_A_TASK, "data", "metric", "evaluation_every", "evaluation_clients")


class Axis(NamedTuple):
    """The values that a key takes, numbers in ascending order."""

    key: str
    values: tuple[Any, ...]

    @property
    def grows(self) -> bool:
        """Whether there are values beyond its ends."""
        return all(is_number(value) for value in self.values)


def is_number(value: Any) -> bool:
    """Whether a key's value is a number, which truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_keys(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """`KEY=V1,V2` as key -> values, `KEY` as key -> nothing: around what the task has."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, sign, values = text.partition("=")
        key = key.strip()
        check(bool(key), f"--keys {text!r} is not of the form KEY or KEY=V1,V2,…")
        check(key not in found, f"--keys has {key!r} twice")
        words = [word.strip() for word in values.split(",")]
        check(not sign or all(words), f"--keys {text!r}: a value is missing after = or a comma")
        found[key] = tuple(parse_set(f"{key}={word}")[1] for word in words) if sign else ()
    return found


def checked_keys(keys: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Keys that a search can choose, each with no values or with several."""
    check(bool(keys), "no key was given to search")
    for key, values in keys.items():
        first = key.partition(".")[0]
        check(first not in NOT_SEARCHED, f"--keys {key!r}: a search cannot choose {first!r}")
        different = len(set(map(as_text, values)))
        check(
            different == len(values) != 1,
            f"--keys {key} has {in_list(values)}; give it two or more different values, or none",
        )
    return {key: tuple(values) for key, values in keys.items()}


def in_list(values: Iterable[Any]) -> str:
    """Values with commas between them."""
    return ", ".join(map(as_text, values))


def axis_of(key: str, values: Sequence[Any]) -> Axis:
    """An axis with these values: numbers by size, all others by name."""
    numbers = all(map(is_number, values))
    return Axis(key, tuple(sorted(values) if numbers else sorted(values, key=as_text)))


def around(value: float) -> tuple[Any, ...]:
    """The first grid around the task's own value: half a decade each way; whole numbers by 2."""
    if isinstance(value, int):
        return tuple(dict.fromkeys((value // 2, value, 2 * value)))
    return tuple(_rounded(value * math.sqrt(10) ** power) for power in (-1, 0, 1))


def beyond(axis: Axis, upward: bool) -> Any:
    """The next value after an end, by the steps or ratios that lead to it; None if there is none.

    1, 3, 10 goes on with 30, and 0.1, 0.2, 0.3 with 0.4.
    """
    ordered = axis.values if upward else axis.values[::-1]
    *_, before, last = ordered
    start, middle = ordered[-3:-1] if len(ordered) > 2 else (before, last)
    if _is_linear(axis.values):
        new = round(middle + last - start, 5 - math.floor(math.log10(abs(last - before))))
    else:
        new = _rounded(middle * last / start)
    new = round(new) if all(isinstance(value, int) for value in ordered) else new
    return None if new in ordered else new


def _is_linear(values: Sequence[float]) -> bool:
    """Whether steps are equal, or ratios impossible."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    equal = all(math.isclose(step, steps[0], rel_tol=1e-6) for step in steps)
    return min(values) <= 0 or (len(steps) > 1 and equal)


def _rounded(value: float) -> float:
    """As a person would write it."""
    return float(f"{value:.3g}")


def extended(axis: Axis, value: Any) -> Axis:
    """The axis with one more value at its end."""
    return axis_of(axis.key, (*axis.values, value))


def grid_of(axes: Sequence[Axis]) -> list[Setting]:
    """All combinations, the last axis fastest."""
    return list(itertools.product(*(axis.values for axis in axes)))


def in_words(keys: Sequence[str], setting: Setting) -> str:
    """A setting as messages have it."""
    pairs = zip(keys, setting, strict=True)
    return ", ".join(f"{key} = {as_text(value)}" for key, value in pairs)
