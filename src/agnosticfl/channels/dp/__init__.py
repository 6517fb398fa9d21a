# SPDX-License-Identifier: Apache-2.0
"""User-level differential privacy: a client's whole contribution is clipped, and the sum noised.

Here is what a task's `[dp]` means: the noise and how it is counted. `clipping.py` makes one vector
of norm at most 1 of a contribution, `noise.py` whole numbers of it and noises their sum;
`resuming.py` finds the noise of a run that goes on, and `statements.py` says what was spent. What
noise is and costs is in the room `privacy`; docs/privacy.md says what is promised,
and docs/privacy-why.md why it holds.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from agnosticfl.channels.dp.clipping import ClipBounds, Follow, follow, private, vector_size
from agnosticfl.channels.dp.ftrl import (
    KINDS,
    Strategy,
    correlated,
    find_strategy,
    rounding_of_one,
    sensitivity_of,
)
from agnosticfl.channels.dp.noise import (
    Scale,
    by_clients,
    independent,
    rounding_sensitivity,
    scale_for,
    units_for,
)
from agnosticfl.channels.dp.private_run import Federation, Privacy, RunFacts
from agnosticfl.channels.dp.questions import find_answers
from agnosticfl.channels.dp.resuming import going_on
from agnosticfl.channels.dp.statements import NOT_PRIVATE, for_whom, statement
from agnosticfl.core import tree
from agnosticfl.errors import check, choose
from agnosticfl.options import AtLeastOne, Positive
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import NOTHING_ASKED, ROUNDED, Accountant, Asked, Budget
from agnosticfl.privacy.entropy import Secrets, fresh_secret
from agnosticfl.privacy.noise_source import noise_source

__all__ = [
    "NOT_PRIVATE",
    "Federation",
    "Privacy",
    "RunFacts",
    "differential_privacy",
    "for_whom",
    "going_on",
    "statement",
]


def differential_privacy(
    run: RunFacts,
    epsilon: Positive,
    delta: Annotated[float, Meta(gt=0, lt=1)],
    noise_multiplier: Positive | None = None,
    mode: Literal["central", "distributed"] = "central",
    noise: Literal["independent", "banded", "buffered"] = "independent",
    separation: AtLeastOne | None = None,
    population: AtLeastOne | None = None,
    clip: Positive = 1.0,
    weight: Annotated[float, Meta(ge=1)] = 4.0,
    examples: Positive = 100.0,
    loss: Positive = 5.0,
    quantile: Annotated[float, Meta(ge=0, lt=1)] = 0.5,
    honest: AtLeastOne | None = None,
    silos: Literal["domain"] | None = None,
    public: Sequence[Literal["heldout", "test"]] = (),
    test_seed: Annotated[int, Meta(ge=0)] | None = None,
) -> Privacy:
    """Finds the noise with which all rounds together are (ε, δ)-differentially private.

    Args:
      epsilon: ε, for any one client of the population replaced by any other.
      delta: δ; below one over the number of clients, to mean anything.
      noise_multiplier: z; found if None. With one that does not last, the run is refused.
      mode: `"central"` (a trusted server adds the noise) or `"distributed"` (every client adds its
        share of it, for a secure sum).
      noise: `"independent"` from round to round, or correlated (DP-FTRL), by a `"banded"` or a
        `"buffered"` Toeplitz matrix; clients then take turns.
      separation: correlated noise: from one round of a client to its next there are so many rounds
        at least; by default ⌊K / c⌋, which is the most.
      population: the number of clients that the accounting assumes; all of the data's if None.
      clip: first bound on the update of a client with as many examples as `examples`: that on
        ‖n_k Δ^k‖ is clip · examples.
      weight: the most that an example counts, as a multiple of the mean one; what λ would give a
        rare domain beyond that is cut, since the noise on the update grows with it.
      examples: first bound on a client's number of examples, n_k.
      loss: first bound on a client's mean loss, so that ‖L^k‖ ≤ loss · examples.
      quantile: of the updates' norms, which `clip` follows (the other bounds follow a higher one);
        0 for fixed bounds.
      honest: distributed noise: the shares of so many clients are as much noise as is counted, so
        that others may be missing or known to somebody; by default those of all c.
      silos: `"domain"` if the data's clients are owners of examples (patients), and those of one
        domain are in one silo (a hospital), which clips, draws and noises for itself. Then ε is for
        one owner, silo by silo.
      public: splits whose clients agreed that their results are published as they are; those of
        others are noised (`runs.looks`).
      test_seed: for tests only: noise that follows from a number. Such a run is not private, and
        says so wherever it says anything.
    """
    del public, silos  # of those who train, nobody; `run` knows the silos
    c = run.clients_per_round
    population = run.num_clients if population is None else population
    _check_choices(run, mode, noise, population)
    _check_bounds(clip, examples, loss, weight, quantile)
    sharing = _sharing(run, mode, honest)
    strategy = _strategy(run, noise, separation, population)
    answers = None if run.questions is None else find_answers(run.questions, epsilon, delta)
    asked = NOTHING_ASKED if answers is None else answers.asked
    size = vector_size(run.like)
    counting = Counting(run, size, sharing, strategy, asked)
    rates = [s.per_round / len(s.owners) for s in run.silos] if run.silos else [c / population]
    budget = Budget(epsilon, delta, counting.accountant(max(rates)))
    scale = _scale(accounting.check_budget(budget), counting, noise_multiplier)
    _check_fine(run, strategy, size, scale.units)
    budget = budget._replace(accountant=counting.accountant(max(rates), scale.units))
    accounting.check_rounds(budget, scale.noise, counting.sums)

    reports = not [*tree.leaves(run.like.weighted_delta)]
    following = follow(quantile, scale.noise * scale.spread, c, run.rounds)
    source = noise_source(run.secrets or Secrets(fresh_secret()))
    release = independent(source, sharing.draws) if run.federation is None else by_clients
    release = release if strategy is None else correlated(source, strategy)
    bounds = ClipBounds(clip * examples, loss * examples, examples)
    channel = private(bounds, scale, c, following, release, reports, weight)
    silo_costs = {
        silo.name: (len(silo.owners), silo.per_round, counting.accountant(rate, scale.units))
        for silo, rate in zip(run.silos or (), rates, strict=False)
    }
    return Privacy(
        lambda _: channel,
        budget,
        mode,
        population,
        scale,
        bounds,
        _how_they_move(following),
        test_seed,
        strategy,
        silo_costs or None,
        run.federation,
        answers,
    )


def _how_they_move(following: Follow | None) -> str:
    """How the bounds follow their quantiles, in words."""
    if following is None:
        return "fixed"
    often = "round" if following.every == 1 else f"{following.every} rounds"
    return f"move after every {often}"


class Sharing(NamedTuple):
    """Who adds noise to a sum, and for how many clients it has room."""

    by_each: bool  # every client of it adds its share
    draws: int  # of noise that are added up
    enough: int  # draws that are noise z by themselves
    most: int  # clients in a sum

    @property
    def widest(self) -> float:
        """The deviation of the noise when all have added theirs, if z is 1."""
        return math.sqrt(self.most / self.enough) if self.by_each else 1.0


def _sharing(run: RunFacts, mode: str, honest: int | None) -> Sharing:
    """Clients noise their own sum in a distributed run; every silo noises its own in any."""
    c, places = run.clients_per_round, 1 if run.silos is None else len(run.silos)
    by_each = mode == "distributed" and run.silos is None
    check(
        honest is None or (by_each and honest <= c),
        f"dp: honest is {honest}; it is for noise that each of c clients adds (mode 'distributed',"
        f" no silos), and at most c = {c}",
    )
    most = c if run.federation is None else run.federation.most_clients
    if by_each:
        return Sharing(True, c, honest or c, most)
    return Sharing(False, places, 1 if mode == "central" else places, most)


def _strategy(
    run: RunFacts, noise: str, separation: int | None, population: int
) -> Strategy | None:
    """How the noise of one round takes back that of earlier ones; None if it is independent."""
    if noise == "independent":
        check(
            separation is None,
            f"dp: separation is {separation}; independent noise needs none",
        )
        return None
    c = run.clients_per_round
    turns = population // c
    check(
        run.federation is not None or (separation or 1) <= turns,
        f"dp: separation is {separation}; where {c} of {population} clients take part in a"
        f" round, a client's turn comes every {turns} rounds",
    )
    counted_each = run.federation is not None
    return find_strategy(noise, run.rounds, separation or turns, counted_each)


class Counting(NamedTuple):
    """How it is counted what a run's sums cost."""

    run: RunFacts
    size: int  # numbers in a client's vector
    sharing: Sharing
    strategy: Strategy | None
    asked: Asked  # besides the rounds

    @property
    def sums(self) -> int:
        """Of one client, that are opened in all."""
        return self.run.rounds if self.run.sums is None else self.run.sums

    def units(self, z: float) -> int:
        """The finest for which a sum has room."""
        return units_for(self.sharing.most, z * self.sharing.widest)

    def accountant(self, rate: float, units: int | None = None) -> Accountant:
        """With these units, or with those that suit each z."""

        def sensitivity(z: float) -> float:
            if self.run.federation is not None:
                return 1 + ROUNDED  # of all kinds of sums, as every client counts
            return rounding_sensitivity(self.size, units or self.units(z))

        def lattice(z: float, rounds: int) -> float:
            return accounting.off_lattice(z * (units or self.units(z)), rounds * self.size)

        # With correlated noise, too, a client's rounds cost no more than the sum of each.
        if self.sharing.by_each or self.run.federation is not None:
            return accounting.known_cohorts(sensitivity)
        if (found := self.strategy) is not None:
            return accounting.one_release(
                lambda z: sensitivity_of(found, self.size, units or self.units(z)),
                lattice,
                self.asked,
            )
        return accounting.sampled_gaussian(rate, sensitivity, lattice, self.asked)


def _scale(budget: Budget, counting: Counting, z: float | None) -> Scale:
    """The noise that was asked for, or the least that the budget allows."""
    z = accounting.find_noise(budget, counting.sums) if z is None else z
    check(0 < z < math.inf, f"dp: noise_multiplier is {z}; it must be a number above 0")
    sharing, strategy = counting.sharing, counting.strategy
    spread = math.sqrt(sharing.draws / sharing.enough) if strategy is None else strategy.spread
    return scale_for(z, counting.units(z), sharing.enough)._replace(spread=spread)


def _check_choices(run: RunFacts, mode: str, noise: str, population: int) -> None:
    """Refuses what cannot go together."""
    choose(mode, ("central", "distributed"), "mode of dp")
    choose(noise, ("independent", *KINDS), "noise of dp")
    check(
        noise == "independent" or mode == "central",
        f"dp: noise is {noise!r}, which a server adds that is trusted with the sum; what clients"
        " add themselves is independent",
    )
    check(
        noise == "independent" or run.silos is None,
        "dp: silos add noise of their own, which is independent from round to round",
    )
    check(
        run.clients_per_round <= population <= run.num_clients,
        f"dp: the accounting assumes a population of {population} clients; it must be at least"
        f" the clients per round, {run.clients_per_round}, and the data has {run.num_clients}",
    )


def _check_bounds(
    clip: float, examples: float, loss: float, weight: float, quantile: float
) -> None:
    """Refuses bounds that bound nothing."""
    for name, value in (("clip", clip), ("examples", examples), ("loss", loss)):
        check(0 < value < math.inf, f"dp: {name} is {value}; it must be a number above 0")
    check(1 <= weight < math.inf, f"dp: weight is {weight}; it must be a number of at least 1")
    check(0 <= quantile < 1, f"dp: quantile is {quantile}; it must be from 0 (fixed) to below 1")


def _check_fine(run: RunFacts, strategy: Strategy | None, size: int, units: int) -> None:
    """Refuses a federation whose whole numbers are too coarse for what its clients count with."""
    longer = rounding_sensitivity(size, units) - 1
    if strategy is not None:
        longer = rounding_of_one(strategy, size, units)
    check(
        run.federation is None or longer <= ROUNDED,
        f"dp: a vector of {size} numbers in units of 1/{units}, for which 32 bits have room, may be"
        f" {longer:.2g} longer by rounding; a federation counts with {ROUNDED:.2g}: fewer clients"
        " per round, or a smaller model",
    )
