# SPDX-License-Identifier: Apache-2.0
"""Ways to choose the clients of a round, as a task names them: `(data, c, seed) -> Sampler`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from agnosticfl.data.federated import FederatedData
from agnosticfl.data.summary import main_domain
from agnosticfl.sampling import (
    Sampler,
    available,
    day_and_night,
    over_selected,
    stratified,
    uniform,
)

Cohorts: TypeAlias = Callable[[FederatedData, int, int], Sampler]  # (data, c, seed)


def uniform_cohorts(over_selection: float = 1.0) -> Cohorts:
    """Every client is as likely as any other: the paper's random set of c clients.

    Args:
      over_selection: select this many times c clients and keep the c that finish first.
    """
    return _over_selecting(lambda data, c, seed: uniform(data.num_clients, c, seed), over_selection)


def stratified_cohorts(shares: Sequence[float], over_selection: float = 1.0) -> Cohorts:
    """A fixed share of each cohort for each domain; a client counts for its main domain."""

    def cohorts(data: FederatedData, c: int, seed: int) -> Sampler:
        return stratified(main_domain(data), shares, c, seed)

    return _over_selecting(cohorts, over_selection)


def available_cohorts(
    lowest: float,
    highest: float,
    peak_hours: Sequence[float] = (2.0,),
    minutes_per_round: float = 60.0,
    over_selection: float = 1.0,
) -> Cohorts:
    """Those who are available at the hour of the round; see `sampling.day_and_night`.

    With one peak hour all clients share it; with one for each domain, domains train at other hours.
    """

    def cohorts(data: FederatedData, c: int, seed: int) -> Sampler:
        domain = main_domain(data) if len(peak_hours) > 1 else None
        chance = day_and_night(lowest, highest, peak_hours, domain)
        return available(data.num_clients, c, seed, chance, minutes_per_round)

    return _over_selecting(cohorts, over_selection)


def _over_selecting(cohorts: Cohorts, factor: float) -> Cohorts:
    if factor == 1.0:
        return cohorts
    return lambda data, c, seed: over_selected(lambda n: cohorts(data, n, seed), c, seed, factor)


# What a task's [sampling] can name.
SAMPLING: dict[str, Callable[..., Cohorts]] = {
    "uniform": uniform_cohorts,
    "stratified": stratified_cohorts,
    "available": available_cohorts,
}
