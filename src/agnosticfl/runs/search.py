# SPDX-License-Identifier: Apache-2.0
"""How a search goes: the grid grows beyond an edge on which the best lies, as far as a budget goes.

Nothing here runs a trial: `measure` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agnosticfl.runs.axes import Axis, Setting, beyond, extended, grid_of, in_words
from agnosticfl.runs.told_apart import told_apart
from agnosticfl.runs.trials import Tried


class Searched(NamedTuple):
    """What a search found, and why it ended."""

    measured: list[Tried]  # in the order of the grid
    best: Tried | None  # by its mean; None if every setting diverged
    equals: list[Tried]  # others that cannot be told apart from the best
    ended: str  # in words
    inside: bool  # whether the best has neighbours on all sides that are worse


def search(
    axes: Sequence[Axis],
    measure: Callable[[Sequence[Setting]], Mapping[Setting, Tried]],
    allowed: Callable[[Setting], bool],
    budget: int,
    higher: bool,
) -> Searched:
    """Searches from a first grid on.

    Args:
      measure: runs the trials of some settings, and says what all so far came to.
      allowed: whether a value beyond an edge is one that its key takes.
      budget: the most settings.
      higher: whether a higher score is better.
    """
    known: dict[Setting, Tried] = {}
    wave = grid_of(axes)
    while True:
        known |= measure(wave)  # of those before, too: what noise hides now counts for none
        measured = [known[setting] for setting in grid_of(axes)]
        best = best_of(measured, higher)
        wider = next(_wider(axes, best, allowed), axes)
        wave = [setting for setting in grid_of(wider) if setting not in known]
        if not wave or len(known) + len(wave) > budget:
            break
        axes = wider
    inside = best is not None and not any(_edges(axes, best.setting))
    why = _where(axes, best) + _no_further(inside, len(wave))
    ended = f"{why} ({len(known)} of {budget} settings)"
    return Searched(measured, best, equal_to(best, measured), ended, inside)


def best_of(measured: Sequence[Tried], higher: bool) -> Tried | None:
    """The best mean; of equal ones the first in the order of the grid, the smallest rate."""
    means = {i: m.mean for i, m in enumerate(measured) if m.mean is not None}
    pick = max if higher else min
    return measured[pick(means, key=lambda i: means[i])] if means else None


def equal_to(best: Tried | None, measured: Sequence[Tried]) -> list[Tried]:
    """The settings that cannot be told apart from the best; one that diverged can."""
    if best is None or best.scores is None:
        return []
    others = [m for m in measured if m.setting != best.setting and m.scores is not None]
    return [m for m in others if not told_apart(best.scores, m.scores or [])]


def _edges(axes: Sequence[Axis], setting: Setting) -> Iterator[tuple[int, bool]]:
    """The axes on whose ends a setting lies, and whether it is the upper one."""
    for i, (axis, value) in enumerate(zip(axes, setting, strict=True)):
        if axis.grows and value in (axis.values[0], axis.values[-1]):
            yield i, value == axis.values[-1]


def _wider(
    axes: Sequence[Axis], best: Tried | None, allowed: Callable[[Setting], bool]
) -> Iterator[list[Axis]]:
    """Grids with one line more, beyond an edge on which the best lies.

    Where everything diverged, smaller values are worth a try.
    """
    at = grid_of(axes)[0] if best is None else best.setting
    for i, upward in _edges(axes, at):
        value = beyond(axes[i], upward)
        if value is not None and allowed((*at[:i], value, *at[i + 1 :])):
            yield [*axes[:i], extended(axes[i], value), *axes[i + 1 :]]


def _where(axes: Sequence[Axis], best: Tried | None) -> str:
    if best is None:
        return "every setting diverged"
    ends = [(axes[i].key, best.setting[i]) for i, _ in _edges(axes, best.setting)]
    if ends:
        keys, values = zip(*ends, strict=True)
        return f"the best lies at the edge of the grid, {in_words(keys, values)}"
    return "the best lies inside the grid" if any(a.grows for a in axes) else "all were tried"


def _no_further(inside: bool, missing: int) -> str:
    if inside:
        return ""
    spent = f", and the budget is spent: the next line has {missing} more"
    return spent if missing else ", and there is nothing beyond it"
