# SPDX-License-Identifier: Apache-2.0
"""What a run has spent: which rounds were opened, with how much noise, counted when they might be.

Rounds are charged before they run. A round that is played again after a crash has other noise, and
both are charged: whoever saw the first sum may see the second. The noise of the rounds that are
left is then found anew, so that all of them together stay within the budget.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Budget, Charge


class Plan(NamedTuple):
    """How a run goes on."""

    before: tuple[Charge, ...]  # what was charged when it was interrupted
    noise: float  # z of the rounds that are left


def plan(budget: Budget, before: Sequence[Charge], done: int, noise: float, rounds: int) -> Plan:
    """From round `done` + 1 to `rounds`; refused if nothing of the budget is left for them.

    Args:
      before: what is charged already: rounds 1 … `done`, and any that were opened and lost.
      noise: z so far.
    """
    left = rounds - done
    enough = accounting.spent(budget, (*before, Charge(noise, left))) <= budget.epsilon
    if left == 0 or enough:
        return Plan(tuple(before), noise)
    return Plan(tuple(before), accounting.find_noise(budget, left, before))


def charged(plan: Plan, rounds: int) -> tuple[Charge, ...]:
    """Everything so far, with `rounds` rounds since the run went on."""
    return _joined([*plan.before, Charge(plan.noise, rounds)])


def as_rows(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    """For a file."""
    return [{"noise_multiplier": z, "rounds": rounds} for z, rounds in charges]


def from_rows(statement: Mapping[str, Any], place: str) -> tuple[Charge, ...]:
    """The inverse, of a whole statement."""
    try:
        rows = statement["charged"]
        found = tuple(Charge(float(row["noise_multiplier"]), int(row["rounds"])) for row in rows)
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            f"{place} does not say what was charged; it cannot be gone on with"
        ) from None
    return found


def _joined(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Rounds with the same noise are one charge."""
    total: dict[float, int] = {}
    for z, rounds in charges:
        total[z] = total.get(z, 0) + rounds
    return tuple(Charge(z, rounds) for z, rounds in total.items() if rounds > 0)
