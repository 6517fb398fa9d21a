# SPDX-License-Identifier: Apache-2.0
"""What all clients are asked of a model besides the rounds, with noise of its own.

Rounds of clients who are drawn at random cost little, since most clients are in none of them. A
question goes to all, so with a round's noise it would cost far more than a round. But the sum of
their answers is over all clients, too, and bears more noise than a round's.
"""

from typing import NamedTuple

from agnosticfl.channels.dp.noise import Scale, rounding_sensitivity, scale_for, units_for
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Asked, Budget

# Of ε: what all questions would cost if they were alone. Together with the rounds it is far less,
# for noise adds up by its squares.
SHARE = 0.1
# Sums have room for so many clients in any case: units would tell how many keep examples.
MANY = 2**20


class Questions(NamedTuple):
    """What clients are asked."""

    number: int  # of questions, at most
    clients: int  # who answer one, at most
    size: int  # numbers in an answer, a vector of norm 1


class Answers(NamedTuple):
    """The noise of their sums."""

    number: int  # of questions that are paid for
    scale: Scale
    asked: Asked


def find_answers(questions: Questions, epsilon: float, delta: float) -> Answers:
    """The noise with which all questions alone would cost `SHARE` of ε."""

    def units(z: float) -> int:
        return units_for(max(questions.clients, MANY), z)

    def longest(z: float) -> float:
        return rounding_sensitivity(questions.size, units(z))

    def beyond(z: float, number: int) -> float:
        return accounting.off_lattice(z * units(z), number * questions.size)

    budget = Budget(epsilon, delta, accounting.sampled_gaussian(1.0, longest, beyond))
    alone = accounting.check_budget(budget)._replace(epsilon=SHARE * epsilon)
    z = accounting.find_noise(alone, questions.number)
    scale = scale_for(z, units(z), 1)
    asked = Asked(z / longest(z), questions.number, beyond(z, questions.number))
    return Answers(questions.number, scale, asked)
