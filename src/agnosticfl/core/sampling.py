# SPDX-License-Identifier: Apache-2.0
"""Who takes part in round t: pure functions of (seed, t)."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from agnosticfl.core.random import random_bits, random_unit
from agnosticfl.errors import check


class Sampler(Protocol):
    """Who takes part in round t: the numbers of the clients C_t, a pure function of t."""

    def __call__(self, t: int, /) -> np.ndarray: ...


# (hour of the day, clients [n]) -> the chance [n] that each is available
Chance: TypeAlias = Callable[[float, np.ndarray], np.ndarray]

# What random bits are for. No client has such a number, so they are not those of `example_order`.
_THERE, _DRAW, _TIME = range(2**62, 2**62 + 3)


def uniform(num_clients: int, clients_per_round: int, seed: int) -> Sampler:
    """C_t is `clients_per_round` (c) different clients, each set equally likely."""
    check(
        1 <= clients_per_round <= num_clients,
        f"clients per round (c) is {clients_per_round};"
        f" it must be from 1 to the number of clients, {num_clients}",
    )

    def everyone(_: int) -> np.ndarray:
        return np.arange(num_clients)

    def sample(t: int) -> np.ndarray:
        return np.random.default_rng([seed, t]).choice(
            num_clients, clients_per_round, replace=False, shuffle=False
        )

    return everyone if clients_per_round == num_clients else sample


def stratified(
    client_domain: np.ndarray, shares: Sequence[float], clients_per_round: int, seed: int
) -> Sampler:
    """C_t has a fixed share of clients from each domain, drawn uniformly within the domain.

    Args:
      client_domain: [clients], the domain each client counts for; `main_domain(data)` gives the
        domain of most of its examples.
      shares: [p], the part of each domain in every cohort. Shares of c that are no whole numbers
        are rounded so that they sum to c, the largest remainders up.
      clients_per_round: c.
      seed: of all draws.
    """
    share = np.asarray(shares, float)
    check(
        share.min(initial=np.inf) >= 0 and 0 < share.sum() < np.inf and clients_per_round >= 1,
        f"shares {[*shares]} of {clients_per_round} clients per round: no share may be negative,"
        " and there must be something to draw",
    )
    exact = clients_per_round * share / share.sum()
    wanted = np.floor(exact).astype(int)
    missing = clients_per_round - wanted.sum()
    wanted[np.argsort(wanted - exact, kind="stable")[:missing]] += 1
    groups = [np.flatnonzero(client_domain == i) for i in range(len(share))]
    for i, (number, group) in enumerate(zip(wanted, groups, strict=True)):
        check(
            number <= len(group),
            f"domain {i} has {len(group)} clients, but its share is {number} clients per round",
        )

    def sample(t: int) -> np.ndarray:
        rng = np.random.default_rng([seed, t])
        drawn = [
            group[rng.choice(len(group), number, replace=False, shuffle=False)]
            for number, group in zip(wanted, groups, strict=True)
            if number
        ]
        return np.concatenate(drawn)

    return sample


def day_and_night(
    lowest: float,
    highest: float,
    peak_hours: Sequence[float] = (2.0,),
    client_domain: np.ndarray | None = None,
) -> Chance:
    """A chance that swings between two values once a day, as phones charge at night.

    `peak_hours` has the hour of the highest chance of each domain, if `client_domain` is given, or
    else the one hour of all: domains in other time zones train at other hours.
    """
    check(
        0 <= lowest <= highest <= 1,
        f"chances from {lowest} to {highest}: both must be from 0 to 1, the lowest first",
    )
    peaks = np.asarray(peak_hours, float)
    needed = 1 if client_domain is None else int(client_domain.max()) + 1
    check(
        len(peaks) == needed,
        f"{len(peaks)} peak hours were given, but {needed} needed: one per domain",
    )

    def chance(hour: float, clients: np.ndarray) -> np.ndarray:
        domain = np.zeros(len(clients), int) if client_domain is None else client_domain[clients]
        swing = (1 + np.cos(2 * np.pi * (hour - peaks[domain]) / 24)) / 2
        return lowest + (highest - lowest) * swing

    return chance


def available(
    num_clients: int,
    clients_per_round: int,
    seed: int,
    chance: Chance,
    minutes_per_round: float = 60.0,
) -> Sampler:
    """C_t is drawn uniformly among the clients that are available at the hour of round t.

    Whether client k is available in round t is a function of (seed, t, k). Clients are drawn until
    c of them are available, so the work is about c divided by the chance; only if hardly anybody
    is available are all clients asked.
    """
    check(
        1 <= clients_per_round <= num_clients and minutes_per_round > 0,
        f"clients per round (c) is {clients_per_round} of {num_clients}, every"
        f" {minutes_per_round} minutes; c must be from 1 to their number, and time must pass",
    )

    def there(t: int, clients: np.ndarray) -> np.ndarray:
        hour = t * minutes_per_round / 60 % 24
        return clients[random_unit(seed, t, _THERE, clients) < chance(hour, clients)]

    def sample(t: int) -> np.ndarray:
        found, asked = np.zeros(0, np.int64), 0
        while len(found) < clients_per_round and asked < num_clients:
            tries = asked + np.arange(2 * clients_per_round)
            drawn = random_bits(seed, t, _DRAW, tries) % np.uint64(num_clients)
            found = _distinct(np.concatenate([found, there(t, drawn.astype(np.int64))]))
            asked += len(tries)
        if len(found) < clients_per_round:
            everybody = there(t, np.arange(num_clients))
            check(
                len(everybody) >= clients_per_round,
                f"round {t}: only {len(everybody)} of {num_clients} clients are available, but"
                f" clients per round (c) is {clients_per_round}",
            )
            found = everybody[np.argsort(random_bits(seed, t, _DRAW, everybody), kind="stable")]
        return found[:clients_per_round]

    return sample


def over_selected(
    make: Callable[[int], Sampler], clients_per_round: int, seed: int, factor: float = 1.3
) -> Sampler:
    """Selects factor × c clients and keeps the c that finish first; the others are stragglers.

    `make(c)` gives the sampler that selects, as in `lambda c: uniform(num_clients, c, seed)`. The
    time that client k needs in round t is random and a function of (seed, t, k).
    """
    check(factor >= 1, f"over-selection factor is {factor}; it must be at least 1")
    select = make(math.ceil(round(factor * clients_per_round, 6)))

    def sample(t: int) -> np.ndarray:
        selected = select(t)
        time = random_bits(seed, t, _TIME, selected)
        return selected[np.argsort(time, kind="stable")[:clients_per_round]]

    return sample


def _distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, where it came first."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]
