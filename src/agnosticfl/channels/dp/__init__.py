# SPDX-License-Identifier: Apache-2.0
"""User-level differential privacy: a client's whole contribution is clipped, and the sum noised.

`clipping.py` makes one vector of norm at most 1 of a contribution, `noise.py` noises the sum of
such vectors, `accounting.py` says what that costs; docs/privacy.md says what is promised.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import jax
from msgspec import Meta

from agnosticfl.channels.dp import accounting
from agnosticfl.channels.dp.accounting import Budget
from agnosticfl.channels.dp.clipping import ClipBounds, PrivacyState, private, vector_size
from agnosticfl.channels.dp.noise import (
    SMALLEST_SHARE,
    central,
    distributed,
    rounding_sensitivity,
    units_for,
)
from agnosticfl.core.channel import ChannelBuilder
from agnosticfl.core.contribution import ChannelState, ClientSum
from agnosticfl.core.state import ServerState
from agnosticfl.errors import check, choose
from agnosticfl.options import AtLeastOne, Positive


class RunFacts(NamedTuple):
    """What a run's privacy depends on, besides the options of its budget."""

    like: ClientSum  # shapes of a contribution
    rounds: int  # T
    clients_per_round: int  # c
    num_clients: int  # K


class Privacy(NamedTuple):
    """A differentially private run."""

    channel: ChannelBuilder
    budget: Budget
    mode: str
    population: int
    # Of the held-out clients, if their losses move λ. Nobody is in both groups, so a client spends
    # what its own group does.
    reports: "Privacy | None" = None


def differential_privacy(
    run: RunFacts,
    epsilon: Positive,
    delta: Annotated[float, Meta(gt=0, lt=1)],
    noise_multiplier: Positive | None = None,
    mode: Literal["central", "distributed"] = "central",
    population: AtLeastOne | None = None,
    clip: Positive = 1.0,
    weight: Positive = 2.0,
    examples: Positive = 100.0,
    loss: Positive = 5.0,
    quantile: Annotated[float, Meta(ge=0, lt=1)] = 0.5,
) -> Privacy:
    """Finds the noise with which all rounds together are (ε, δ)-differentially private.

    Args:
      epsilon: ε, for any one client of the population replaced by any other.
      delta: δ; below one over the number of clients, to mean anything.
      noise_multiplier: z; found if None. With one that does not last, the run is refused.
      mode: `"central"` (a trusted server adds Gaussian noise) or `"distributed"` (every client adds
        its share of discrete Gaussian noise to integers, for a secure sum).
      population: the number of clients that the accounting assumes; all of the data's if None.
      clip: first bound on a client's update, c ‖β^k Δ^k‖ (about ‖Δ^k‖, since Σ_k β^k ≈ 1).
      weight: first bound on a client's weight, c β^k.
      examples: first bound on a client's number of examples, ‖N^k‖.
      loss: first bound on a client's mean loss, so that ‖L^k‖ ≤ loss · examples.
      quantile: of the updates' norms, which `clip` follows (the other bounds follow a higher one);
        0 for fixed bounds.
    """
    c = run.clients_per_round
    population = run.num_clients if population is None else population
    choose(mode, ("central", "distributed"), "mode of dp")
    check(
        c <= population <= run.num_clients,
        f"dp: the accounting assumes a population of {population} clients; it must be at least"
        f" the clients per round, {c}, and the data has {run.num_clients}",
    )
    for name, value in (("clip", clip), ("weight", weight), ("examples", examples), ("loss", loss)):
        check(0 < value < math.inf, f"dp: {name} is {value}; it must be a number above 0")
    check(0 <= quantile < 1, f"dp: quantile is {quantile}; it must be from 0 (fixed) to below 1")
    size = vector_size(run.like)
    if mode == "central":
        accountant = accounting.sampled_gaussian(c / population)
    else:
        accountant = accounting.discrete_gaussian(
            lambda z: rounding_sensitivity(size, units_for(c, z))
        )
    budget = accounting.check_budget(Budget(epsilon, delta, accountant))
    noise = noise_multiplier
    if noise is None:
        noise = accounting.find_noise(budget, run.rounds)
    check(0 < noise < math.inf, f"dp: noise_multiplier is {noise}; it must be a number above 0")
    accounting.check_rounds(budget, noise, 0, run.rounds)
    mechanism = central()
    if mode == "distributed":
        units = units_for(c, noise)
        check(
            noise * units / math.sqrt(c) >= SMALLEST_SHARE,
            f"dp: {c} clients leave no room in 32 bits for shares of noise {noise:.3g}",
        )
        mechanism = distributed(c, units)
    reports = not jax.tree.leaves(run.like.weighted_delta)
    bounds = ClipBounds(clip / c, weight / c, loss * examples, examples)
    channel = private(bounds, noise, c, quantile or None, mechanism, reports)
    return Privacy(lambda _: channel, budget, mode, population)


def check_state(privacy: Privacy, state: ServerState, rounds: int) -> None:
    """Refuses to go on to `rounds` rounds if that would go past the budget."""
    for group, own in _groups(privacy, state):
        accounting.check_rounds(group.budget, _noise(own), int(state.round), rounds)


def statement(privacy: Privacy, state: ServerState, rounds: int) -> dict[str, Any]:
    """What `rounds` rounds have spent, for the run folder."""
    training, *reporting = (_spent(group, own, rounds) for group, own in _groups(privacy, state))
    return {**training, "heldout": reporting[0]} if reporting else training


def _groups(privacy: Privacy, state: ServerState) -> list[tuple[Privacy, ChannelState]]:
    """Those who train and, if they report, those who are held out, with their channel's state."""
    training = [(privacy, state.channel_state)]
    return (
        training if privacy.reports is None else [*training, (privacy.reports, state.report_state)]
    )


def _spent(privacy: Privacy, own: ChannelState, rounds: int) -> dict[str, Any]:
    budget, noise = privacy.budget, _noise(own)
    return {
        "epsilon": accounting.spent(budget, noise, rounds),
        "delta": budget.delta,
        "rounds": rounds,
        "adjacency": "one client replaced by any other",
        "noise_multiplier": noise,
        "mode": privacy.mode,
        "population": privacy.population,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
    }


def _noise(own: ChannelState) -> float:
    """z, as the run itself carries it: what was spent does not change with the configuration."""
    stages = own if type(own) is tuple else (own,)
    return next(float(stage.noise) for stage in stages if isinstance(stage, PrivacyState))
