# SPDX-License-Identifier: Apache-2.0
"""How often secure rounds fail, by the server's own checks; `python -m tests.deploy.success`.

No cryptography is done: who is lost when is drawn, and the functions by which the server decides
whether it goes on (`secagg.holders`, `draw`, `graph.quorum`, `enough_vectors`) are asked.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from agnosticfl.deploy.flower.federation import RoundPolicy, enough_vectors
from agnosticfl.secagg.draw import MEMBERS, MISSING
from agnosticfl.secagg.graph import graph, neighbours, plan, quorum, reckoned_dishonest
from agnosticfl.secagg.holders import Holders, beyond_reach, connected, lost

DROPOUT = 0.1  # that the federation is planned for, as `Agreement` has it
STAGES = 6  # draws, keys, shares, masked vectors, survivors, unmasking


def failure(
    clients: int, over_selection: float, loss: float, rng: np.random.Generator
) -> str | None:
    """One round of `clients` that are asked; where it fails.

    Args:
      loss: probability of a client to be lost in the round, at any of its stages alike.
    """
    wanted = int(clients / over_selection)
    # By default c reports are needed; who asks no more than c must be content with fewer.
    policy = RoundPolicy(wanted, minimum=wanted if over_selection > 1 else quorum(clients))
    gone = np.where(rng.random(clients) < loss, rng.integers(0, STAGES, clients), STAGES)

    def left(stage: int, among: set[int]) -> set[int]:
        return {c for c in among if gone[c] > stage}

    everyone = set(range(clients))
    ring = plan(clients, reckoned_dishonest(clients, 1), DROPOUT).neighbours < clients - 1
    cohort = sorted(left(0, everyone) if ring else everyone)
    own = plan(len(cohort), reckoned_dishonest(len(cohort), 1), DROPOUT)
    drawn = graph(rng.bytes(32), cohort, own)
    holders = Holders({c: neighbours(drawn, c) for c in cohort}, own.threshold)
    told = left(1, set(cohort))
    committee = rng.permutation(cohort)[:MEMBERS]
    if ring and len(told & set(committee.tolist())) < MEMBERS - MISSING:
        return "draw"
    shared = connected(holders, left(2, connected(holders, told)))
    sent = rng.permutation(sorted(left(3, shared)))  # the first to come are taken
    alive = set(sent[: enough_vectors(policy, clients, DROPOUT)].tolist())
    needed = [*alive, *lost(holders, shared, alive)]
    if len(alive) < policy.minimum or beyond_reach(holders, needed, alive):
        return "masked vectors"
    signed = left(4, alive)
    if len(signed) < quorum(len(cohort)) or beyond_reach(holders, needed, signed):
        return "survivors"
    revealed = left(5, signed)
    needed = [*(alive - revealed), *lost(holders, shared, alive)]
    return "unmasking" if beyond_reach(holders, needed, revealed) else None


def failures(
    clients: int, over_selection: float, loss: float, rounds: int, seed: int = 0
) -> list[str]:
    """Where rounds fail, of so many."""
    rng = np.random.default_rng([seed, clients])
    found = [failure(clients, over_selection, loss, rng) for _ in range(rounds)]
    return [stage for stage in found if stage]


def main() -> None:
    table = Table("over-selection", "n", "k", "t", "rounds", "none lost", "5 %", "10 %")
    for over_selection in (1.0, 1.3):
        for clients, rounds in ((10, 20000), (50, 4000), (100, 2000), (1000, 400)):
            own = plan(clients, reckoned_dishonest(clients, 1), DROPOUT)
            shares = [
                f"{len(failures(clients, over_selection, loss, rounds)) / rounds:.2%}"
                for loss in (0.0, 0.05, 0.1)
            ]
            table.add_row(*map(str, (over_selection, clients, *own, rounds)), *shares)
    Console().print(table)


if __name__ == "__main__":
    main()
