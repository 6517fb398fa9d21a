# SPDX-License-Identifier: Apache-2.0
"""Cohorts of private runs: secret where sampling counts, or in turns where separation does."""

from collections.abc import Callable
from typing import Any

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
