# SPDX-License-Identifier: Apache-2.0
"""Ways to choose the clients of a round, as a task names them."""

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeAlias

from msgspec import Meta

from agnosticfl.core.federated import FederatedData, main_domain
from agnosticfl.core.sampling import (
    Sampler,
    available,
    day_and_night,
    over_selected,
    stratified,
    uniform,
)
from agnosticfl.options import NotNegative, Positive, Share
from agnosticfl.registry import SAMPLERS

OverSelection: TypeAlias = Annotated[
    float,
    Meta(ge=1, description="select this many times c clients and keep the c that finish first"),
]


class SamplerBuilder(Protocol):
    """Makes the sampler of some data: who of its clients takes part, c of them per round."""

    def __call__(self, data: FederatedData, clients_per_round: int, seed: int, /) -> Sampler: ...


@SAMPLERS.add("uniform")
def uniform_cohorts(over_selection: OverSelection = 1.0) -> SamplerBuilder:
    """Every client is as likely as any other: the paper's random set of c clients."""
    return _over_selecting(lambda data, c, seed: uniform(data.num_clients, c, seed), over_selection)


@SAMPLERS.add("stratified")
def stratified_cohorts(
    shares: Sequence[NotNegative], over_selection: OverSelection = 1.0
) -> SamplerBuilder:
    """A fixed share of each cohort for each domain; a client counts for its main domain.

    Args:
      shares: of each domain, in the order of the domains.
    """

    def cohorts(data: FederatedData, c: int, seed: int) -> Sampler:
        return stratified(main_domain(data), shares, c, seed)

    return _over_selecting(cohorts, over_selection)


@SAMPLERS.add("available")
def available_cohorts(
    lowest: Share,
    highest: Share,
    peak_hours: Sequence[float] = (2.0,),
    minutes_per_round: Positive = 60.0,
    over_selection: OverSelection = 1.0,
) -> SamplerBuilder:
    """Those who are available at the hour of the round; see `core.sampling.day_and_night`.

    With one peak hour all clients share it; with one for each domain, domains train at other hours.

    Args:
      lowest: the smallest chance in a day that a client is available.
      highest: the largest.
      peak_hours: when the chance is largest, one hour for all or one for each domain.
      minutes_per_round: how much time passes from round to round.
    """

    def cohorts(data: FederatedData, c: int, seed: int) -> Sampler:
        domain = main_domain(data) if len(peak_hours) > 1 else None
        chance = day_and_night(lowest, highest, peak_hours, domain)
        return available(data.num_clients, c, seed, chance, minutes_per_round)

    return _over_selecting(cohorts, over_selection)


def _over_selecting(cohorts: SamplerBuilder, factor: float) -> SamplerBuilder:
    if factor == 1.0:
        return cohorts
    return lambda data, c, seed: over_selected(lambda n: cohorts(data, n, seed), c, seed, factor)
