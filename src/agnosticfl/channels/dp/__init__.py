# SPDX-License-Identifier: Apache-2.0
"""User-level differential privacy: a client's whole contribution is clipped, and the sum noised.

`clipping.py` makes one vector of norm at most 1 of a contribution, `noise.py` whole numbers of it
and noises their sum. What noise is and costs is in the room `privacy`; docs/privacy.md says what is
promised.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from agnosticfl.channels.dp.clipping import ClipBounds, PrivacyState, follow, private, vector_size
from agnosticfl.channels.dp.ftrl import (
    KINDS,
    Strategy,
    correlated,
    find_strategy,
    rounding_of_one,
    sensitivity_of,
)
from agnosticfl.channels.dp.noise import (
    ROOM,
    Scale,
    by_clients,
    independent,
    rounding_sensitivity,
    scale_for,
    units_for,
)
from agnosticfl.channels.dp.questions import Answers, Questions, find_answers
from agnosticfl.core import tree
from agnosticfl.core.channel import ChannelBuilder
from agnosticfl.core.contribution import ChannelState, ClientSum
from agnosticfl.core.lazy_jax import jnp
from agnosticfl.errors import check, choose
from agnosticfl.options import AtLeastOne, Positive
from agnosticfl.privacy import accounting, ledger
from agnosticfl.privacy.accounting import NOTHING_ASKED, ROUNDED, Accountant, Budget, Charge
from agnosticfl.privacy.entropy import Secrets, fresh_secret
from agnosticfl.privacy.ledger import Plan
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.privacy.secret_cohorts import Silo

if TYPE_CHECKING:
    from agnosticfl.core.state import ServerState  # its module needs JAX

NOT_PRIVATE = "NOT PRIVATE: the noise follows from dp.test_seed, and anybody can subtract it"


class RunFacts(NamedTuple):
    """What a run's privacy depends on, besides the options of its budget."""

    like: ClientSum  # shapes of a contribution
    rounds: int  # T
    clients_per_round: int  # c
    num_clients: int  # K
    secrets: Secrets | None = None  # the run's own; fresh ones if None
    silos: Sequence[Silo] | None = None  # where clients are, if those are owners of examples
    sums: int | None = None  # of one client that are opened in all; T if None
    federation: "Federation | None" = None  # if clients are somewhere else
    questions: Questions | None = None  # to all clients besides the sums, with noise of their own


class Federation(NamedTuple):
    """Clients that add their shares of the noise themselves, and keep count of what they spend."""

    most_clients: int  # in a sum
    asked: Callable[[], int]  # how many sums they were asked for so far


class Privacy(NamedTuple):
    """A differentially private run."""

    channel: ChannelBuilder
    budget: Budget
    mode: str
    population: int
    scale: Scale
    clip: ClipBounds  # the first bounds
    bounds: str  # how they move, in words
    test_seed: int | None
    strategy: Strategy | None = None  # of correlated noise
    silos: Mapping[str, tuple[int, int, Accountant]] | None = (
        None  # owners, per round, what it costs
    )
    federation: Federation | None = None
    answers: Answers | None = None  # the noise of what all clients are asked besides
    # Of the held-out clients, if their losses move λ. Nobody is in both groups, so a client spends
    # what its own group does.
    reports: "Privacy | None" = None


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
    choose(mode, ("central", "distributed"), "mode of dp")
    choose(noise, ("independent", *KINDS), "noise of dp")
    check(
        noise == "independent" or mode == "central",
        f"dp: noise is {noise!r}, which a server adds that is trusted with the sum; what clients"
        " add themselves is independent",
    )
    check(
        c <= population <= run.num_clients,
        f"dp: the accounting assumes a population of {population} clients; it must be at least"
        f" the clients per round, {c}, and the data has {run.num_clients}",
    )
    for name, value in (("clip", clip), ("examples", examples), ("loss", loss)):
        check(0 < value < math.inf, f"dp: {name} is {value}; it must be a number above 0")
    check(1 <= weight < math.inf, f"dp: weight is {weight}; it must be a number of at least 1")
    check(0 <= quantile < 1, f"dp: quantile is {quantile}; it must be from 0 (fixed) to below 1")
    size = vector_size(run.like)
    places = 1 if run.silos is None else len(run.silos)
    by_each = mode == "distributed" and run.silos is None
    check(
        honest is None or (by_each and honest <= c),
        f"dp: honest is {honest}; it is for noise that each of c clients adds (mode 'distributed',"
        f" no silos), and at most c = {c}",
    )
    draws = c if by_each else places  # every silo noises its own sum
    shares = (honest or c) if by_each else 1 if mode == "central" else places
    most = c if run.federation is None else run.federation.most_clients
    wide = math.sqrt(most / shares) if by_each else 1.0
    sums = run.rounds if run.sums is None else run.sums
    check(
        run.silos is None or noise == "independent",
        "dp: silos add noise of their own, which is independent from round to round",
    )
    rates = [s.per_round / len(s.owners) for s in run.silos] if run.silos else [c / population]
    strategy = None
    if noise != "independent":
        turns = population // c
        check(
            run.federation is not None or (separation or 1) <= turns,
            f"dp: separation is {separation}; where {c} of {population} clients take part in a"
            f" round, a client's turn comes every {turns} rounds",
        )
        strategy = find_strategy(noise, run.rounds, separation or turns)
    check(
        noise != "independent" or separation is None,
        f"dp: separation is {separation}; independent noise needs none",
    )

    answers = None if run.questions is None else find_answers(run.questions, epsilon, delta)
    asked = NOTHING_ASKED if answers is None else answers.asked

    def units_of(z: float) -> int:
        return units_for(most, z * wide)

    def accountant(units: int | None, rate: float) -> Accountant:
        """With these units, or with those that suit each z."""

        def sensitivity(z: float) -> float:
            if run.federation is not None:
                return 1 + ROUNDED  # of all kinds of sums, as every client counts
            return rounding_sensitivity(size, units or units_of(z))

        def lattice(z: float, rounds: int) -> float:
            return accounting.off_lattice(z * (units or units_of(z)), rounds * size)

        # Of banded noise, too, what a client's rounds cost adds up: they share no row of C x.
        if by_each or run.federation is not None:
            return accounting.known_cohorts(sensitivity)
        if (found := strategy) is not None:
            return accounting.one_release(
                lambda z: sensitivity_of(found, size, units or units_of(z)), lattice, asked
            )
        return accounting.sampled_gaussian(rate, sensitivity, lattice, asked)

    worst = max(rates)
    budget = accounting.check_budget(Budget(epsilon, delta, accountant(None, worst)))
    z = noise_multiplier
    if z is None:
        z = accounting.find_noise(budget, sums)
    check(0 < z < math.inf, f"dp: noise_multiplier is {z}; it must be a number above 0")
    units = units_of(z)
    _check_fine(run, strategy, size, units)
    budget, scale = (
        budget._replace(accountant=accountant(units, worst)),
        scale_for(z, units, shares),
    )
    spread = math.sqrt(draws / shares) if strategy is None else strategy.spread
    scale = scale._replace(spread=spread)
    accounting.check_rounds(budget, scale.noise, sums)
    reports = not [*tree.leaves(run.like.weighted_delta)]
    following = follow(quantile, scale.noise * scale.spread, c, run.rounds)
    source = noise_source(run.secrets or Secrets(fresh_secret()))
    release = independent(source, draws) if run.federation is None else by_clients
    release = release if strategy is None else correlated(source, strategy)
    bounds = ClipBounds(clip * examples, loss * examples, examples)
    channel = private(bounds, scale, c, following, release, reports, weight)
    words = "fixed" if following is None else f"move after every {following.every} rounds"
    counted = {
        silo.name: (len(silo.owners), silo.per_round, accountant(units, rate))
        for silo, rate in zip(run.silos or (), rates, strict=False)
    }
    return Privacy(
        lambda _: channel,
        budget,
        mode,
        population,
        scale,
        bounds,
        words,
        test_seed,
        strategy,
        counted or None,
        run.federation,
        answers,
    )


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


def going_on(
    privacy: Privacy,
    state: "ServerState",
    before: Mapping[str, Any] | None,
    rounds: int,
    place: str,
) -> "tuple[ServerState, list[Plan]]":
    """The state with the noise for the rounds that are left, and what stands in the ledger.

    Refused if nothing of the budget is left for them.

    Args:
      before: the statement that an interrupted run left, at `place`; None at the start.
    """
    done = int(state.round)
    check(
        privacy.strategy is None or before is None,
        "dp: a run with correlated noise cannot go on, since the noise that it would take back was"
        f" secret and is gone; what it spent stands in {place}: start anew, with a budget of its"
        " own",
    )
    if privacy.federation is not None:  # whose clients keep count of what the task says
        return state, [Plan((), privacy.scale.noise)]
    check(
        done == 0 or before is not None,
        f"{place} is missing: what {done} rounds of this run have spent is not known",
    )
    plans: list[Plan] = []
    for number, (group, own) in enumerate(_groups(privacy, state)):
        said = before if number == 0 or before is None else before.get("heldout", {})
        charges = () if said is None else ledger.from_rows(said, place)
        plans.append(ledger.plan(group.budget, charges, done, _noise(group, own), rounds))
        check(
            plans[-1].noise <= ROOM * _noise(group, own),
            f"dp: {sum(c.rounds for c in charges)} rounds were charged already; the"
            f" {rounds - done} that are left would need noise multiplier {plans[-1].noise:.3g} to"
            f" stay within epsilon {group.budget.epsilon}, and had {_noise(group, own):.3g}:"
            " start anew, with a budget of its own",
        )
    noises = [plan.noise for plan in plans]
    state = state._replace(channel_state=_with_noise(privacy, state.channel_state, noises[0]))
    if privacy.reports is not None:
        reporting = _with_noise(privacy.reports, state.report_state, noises[1])
        state = state._replace(report_state=reporting)
    fresh = [(group, own) for group, own in _groups(privacy, state)]
    return state, [
        plan._replace(noise=_noise(*both)) for plan, both in zip(plans, fresh, strict=True)
    ]


def statement(privacy: Privacy, plans: list[Plan], rounds: int) -> dict[str, Any]:
    """What is spent after `rounds` rounds since the run started or went on, for the run folder."""
    if privacy.federation is not None:
        return _spent_by_clients(privacy, privacy.federation)
    groups = [privacy] if privacy.reports is None else [privacy, privacy.reports]
    training, *reporting = (
        _spent(group, ledger.charged(plan, rounds))
        for group, plan in zip(groups, plans, strict=True)
    )
    return {**training, "heldout": reporting[0]} if reporting else training


def _groups(privacy: Privacy, state: "ServerState") -> list[tuple[Privacy, ChannelState]]:
    """Those who train and, if they report, those who are held out, with their channel's state."""
    training = [(privacy, state.channel_state)]
    return (
        training if privacy.reports is None else [*training, (privacy.reports, state.report_state)]
    )


def _spent(privacy: Privacy, charges: tuple[Charge, ...]) -> dict[str, Any]:
    budget = privacy.budget
    return {
        "private": privacy.test_seed is None,
        **({} if privacy.test_seed is None else {"warning": NOT_PRIVATE}),
        "epsilon": accounting.spent(budget, charges),
        "delta": budget.delta,
        "rounds": sum(charge.rounds for charge in charges),
        **(_for_clients(privacy) if privacy.silos is None else _for_owners(privacy, charges)),
        "noise_multiplier": charges[-1].noise if charges else privacy.scale.noise,
        "charged": ledger.as_rows(charges),
        "mode": privacy.mode,
        **_of_strategy(privacy.strategy),
        "bounds": privacy.bounds,
        "population": privacy.population,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
    }


def _spent_by_clients(privacy: Privacy, federation: Federation) -> dict[str, Any]:
    """What a client that took part in all it could has spent; none goes beyond the budget."""
    sums, strategy = federation.asked(), privacy.strategy
    if strategy is not None:
        sums = min(-(-sums // strategy.separation), strategy.participations)
    said = _spent(privacy, (Charge(privacy.scale.noise, sums),))
    for name in ("rounds", "charged", "population"):  # sums are counted; K does not matter
        del said[name]
    return {
        **said,
        "sums": sums,
        "epsilon": min(said["epsilon"], privacy.budget.epsilon),
        **(_by_shares(privacy) if strategy is None else {}),
        "amplification": "none is claimed: the server knows who takes part",
        "counted_by": "every client, which keeps a ledger of its own and stops at its budget",
    }


def _by_shares(privacy: Privacy) -> dict[str, Any]:
    """Of noise that clients add themselves."""
    honest = privacy.scale.shares
    return {"trusted": f"nobody, if {honest} clients in every sum are honest", "honest": honest}


def for_whom(owners: bool) -> dict[str, str]:
    """The unit of privacy, and what that means for the other one: both are in every statement.

    Args:
      owners: whether the data's clients are owners of examples, who are in silos.
    """
    if owners:
        return {
            "unit": "owner of examples (patient) within a silo",
            "silo_as_a_whole": "not covered",
            "adjacency": "one owner of one silo replaced by any other",
        }
    return {
        "unit": "client, with all that it holds",
        "owners_within_a_client": "covered by the client's epsilon",
        "adjacency": "one client replaced by any other",
    }


def _for_clients(privacy: Privacy) -> dict[str, Any]:
    return {
        **for_whom(owners=False),
        "trusted": "nobody" if privacy.mode == "distributed" else "the server, with the sum",
    }


def _for_owners(privacy: Privacy, charges: tuple[Charge, ...]) -> dict[str, Any]:
    assert privacy.silos is not None
    return {
        **for_whom(owners=True),
        "trusted": "each silo, with its own owners' sum"
        if privacy.mode == "central"
        else "each silo, with its own owners' sum; the server sees no silo's",
        "silos": {
            name: {
                "epsilon": accounting.spent(privacy.budget._replace(accountant=own), charges),
                "delta": privacy.budget.delta,
                "owners": owners,
                "owners_per_round": each,
            }
            for name, (owners, each, own) in privacy.silos.items()
        },
    }


def _of_strategy(strategy: Strategy | None) -> dict[str, Any]:
    if strategy is None:
        return {"noise": "independent"}
    return {
        "noise": strategy.words,
        "rounds_between_two_of_a_client": strategy.separation,
        "rounds_of_a_client": strategy.participations,
    }


def _noise(privacy: Privacy, own: ChannelState) -> float:
    """z, as the run itself carries it: what was spent does not change with the configuration."""
    found = _own_state(own)
    return int(found.sigma) * math.sqrt(privacy.scale.shares) / float(found.units)


def _with_noise(privacy: Privacy, own: ChannelState, noise: float) -> ChannelState:
    """The same state, with more noise if that is wanted."""
    found = _own_state(own)
    if noise <= _noise(privacy, own):
        return own
    sigma = scale_for(noise, int(found.units), privacy.scale.shares).sigma
    return found._replace(sigma=jnp.int32(sigma))


def _own_state(own: ChannelState) -> PrivacyState:
    assert isinstance(own, PrivacyState)
    return own
