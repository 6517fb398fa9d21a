# SPDX-License-Identifier: Apache-2.0
"""Cohorts of private runs: secret where sampling counts, or in turns where separation does."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.errors import check
from agnosticfl.privacy.entropy import Secrets


def secret_cohorts(secrets: Secrets) -> Callable[[Any, int, int], Callable[[int], np.ndarray]]:
    """C_t is c of K clients, each set equally likely; it follows from the secret, not the seed."""

    def cohorts(data: Any, clients_per_round: int, seed: int) -> Callable[[int], np.ndarray]:
        del seed
        everybody: int = data.num_clients
        check(
            1 <= clients_per_round <= everybody,
            f"clients per round (c) is {clients_per_round};"
            f" it must be from 1 to the number of clients, {everybody}",
        )
        if clients_per_round == everybody:
            return lambda _: np.arange(everybody)

        def sample(t: int) -> np.ndarray:
            generator = secrets.generator(f"cohort of {everybody}", t)
            return generator.choice(everybody, clients_per_round, replace=False, shuffle=False)

        return sample

    return cohorts


class Silo(NamedTuple):
    """Those whose examples lie in one place."""

    name: str
    owners: np.ndarray  # their numbers
    per_round: int  # how many of them take part


def silos_of(names: Sequence[str], place: np.ndarray, clients_per_round: int) -> list[Silo]:
    """The silos that anybody is in, with as nearly the same share of each in a round as can be.

    Args:
      place: [K] the number of the silo of each owner.
    """
    groups = {name: np.flatnonzero(place == i) for i, name in enumerate(names)}
    groups = {name: owners for name, owners in groups.items() if len(owners)}
    rate = clients_per_round / len(place)
    found = [Silo(name, own, max(round(rate * len(own)), 1)) for name, own in groups.items()]
    drawn = sum(silo.per_round for silo in found)
    check(
        drawn == clients_per_round,
        f"dp: {clients_per_round} clients per round (c) are {drawn} when each silo rounds its"
        f" share; set clients_per_round = {drawn}",
    )
    return found


def cohorts_of_silos(
    secrets: Secrets, silos: Sequence[Silo]
) -> Callable[[Any, int, int], Callable[[int], np.ndarray]]:
    """Every silo draws its own part of a cohort, in secret."""

    def cohorts(data: Any, clients_per_round: int, seed: int) -> Callable[[int], np.ndarray]:
        del data, clients_per_round, seed

        def drawn(silo: Silo, t: int) -> np.ndarray:
            generator = secrets.generator(f"cohort of silo {silo.name}", t)
            return generator.choice(silo.owners, silo.per_round, replace=False, shuffle=False)

        return lambda t: np.concatenate([drawn(silo, t) for silo in silos])

    return cohorts


def in_turns(data: Any, clients_per_round: int, seed: int) -> Callable[[int], np.ndarray]:
    """All K clients one after another, c in a round, in an order that the seed gives.

    From one round of a client to its next there are ⌊K / c⌋ rounds at least, which is what the
    accounting of correlated noise counts on; it counts on nothing else, so the order may be known.
    """
    everybody: int = data.num_clients
    check(
        1 <= clients_per_round <= everybody,
        f"clients per round (c) is {clients_per_round};"
        f" it must be from 1 to the number of clients, {everybody}",
    )
    order = np.random.default_rng(seed).permutation(everybody)
    return lambda t: order[((t - 1) * clients_per_round + np.arange(clients_per_round)) % everybody]
