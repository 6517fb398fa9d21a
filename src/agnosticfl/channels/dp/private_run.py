# SPDX-License-Identifier: Apache-2.0
"""What a run's privacy depends on, and a private run."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agnosticfl.channels.dp.clipping import ClipBounds
from agnosticfl.channels.dp.ftrl import Strategy
from agnosticfl.channels.dp.noise import Scale
from agnosticfl.channels.dp.questions import Answers, Questions
from agnosticfl.core.channel import ChannelBuilder
from agnosticfl.core.contribution import ClientSum
from agnosticfl.privacy.accounting import Accountant, Budget
from agnosticfl.privacy.entropy import Secrets
from agnosticfl.privacy.secret_cohorts import Silo


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
