# SPDX-License-Identifier: Apache-2.0
"""Differential privacy of a federation: the noise that its task states, and what a sum costs.

Every client clips its part of a sum to a vector of norm 1 and adds a share of the noise before it
is masked (`node/noised.py`). All that this takes stands in the task, which all machines compare, so
that nothing of it comes in a message: z, the bounds, and of how many honest clients the shares
together are enough. Every client counts each sum that it sent a vector for (`node/ledger.py`).

Noise that is correlated from round to round is added by a server that is trusted with the sum. What
clients still do for themselves: they clip, keep the rounds apart that the task says, and count.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agnosticfl.errors import check
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import ROUNDED, Budget
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.runs.questions import num_questions
from agnosticfl.secagg.graph import quorum, reckoned_dishonest

if TYPE_CHECKING:
    from agnosticfl.channels.dp import Privacy
    from agnosticfl.channels.noised_tallies import TallyNoise
    from agnosticfl.core.contribution import ClientSum
    from agnosticfl.core.federated import Splits
    from agnosticfl.core.metrics import Reading
    from agnosticfl.core.model import Model

SPARE = 0.1  # of the sums: so many more can be asked for, since an attempt that fails counts too
FEWEST_SPARE = 2
DIGITS = 4  # of z in the task, after the point

# What a task cannot have in a federation, and why or what to do.
NOT_DEPLOYED = {
    "test_seed": "noise that follows from a number is for tests in the simulator",
    "population": "every sum is counted, however many clients there are; leave it out",
    "silos": "a client of a federation is the unit of privacy, with all that it holds",
}


def federated_dp(config: Config) -> dict[str, Any]:
    """The table `dp` of a federation with all that its clients must know, or why there is none.

    Args:
      config: with the federation's clients per round.
    """
    own: dict[str, Any] = dict(config.dp or {})
    check(
        config.secure is not None,
        "dp: in the clear the server would read every client's own vector, under its own share of"
        " the noise alone; deploy with --secure",
    )
    for key, why in NOT_DEPLOYED.items():
        check(own.get(key) is None, f"dp: {key} is {own.get(key)!r} in a federation: {why}")
    by_server = correlated(config)
    if by_server:
        _check_by_server(config, own)
    check(
        by_server or own.get("separation") is None,
        f"dp: separation is {own.get('separation')}; independent noise needs none: leave it out",
    )
    check(
        by_server or own.get("mode", "distributed") == "distributed",
        f"dp: mode is {own.get('mode')!r}, in which the server adds the noise; in a federation it"
        " does so only where noise is correlated ('banded', 'buffered'): leave it out",
    )
    check(
        not own.get("quantile"),
        f"dp: quantile is {own.get('quantile')}, by which bounds move as the server says; clients"
        " of a federation have fixed ones: leave it out, and find bounds with `agnosticfl bounds`",
    )
    check(
        config.target is None,
        f"dp: {config.algorithm!r} trains with the clients that have the target's data, and would"
        " tell who they are: choose one that trains with all, such as 'afa'",
    )
    check(
        config.weights_follow == "train" or config.evaluation_by == "clients",
        "dp: in a federation λ follows those who train, or what clients keep from training: set"
        " weights_follow = 'train', or evaluation_by = 'clients'",
    )
    for key in ("epsilon", "delta"):
        check(key in own, f"dp: {key} is needed")
    budget, sums = budget_of(own), planned_sums(config)
    if own.get("noise_multiplier") is None:
        found = accounting.find_noise(budget, sums)
        own["noise_multiplier"] = math.ceil(found * 10**DIGITS) / 10**DIGITS
    accounting.check_rounds(budget, float(own["noise_multiplier"]), sums)
    if by_server:
        return {**own, "mode": "central", "quantile": 0.0}
    least = fewest_honest(config)
    honest = int(own.get("honest") or least)
    check(
        1 <= honest <= least,
        f"dp: honest is {honest}; of a round of {config.clients_per_round} clients"
        f" {least} are sure to be honest and in the sum",
    )
    return {**own, "mode": "distributed", "quantile": 0.0, "honest": honest}


def correlated(config: Config) -> bool:
    """Whether the noise of later rounds takes that of earlier ones back: the server adds it."""
    return (config.dp or {}).get("noise", "independent") != "independent"


def separation(config: Config) -> int:
    """From one round of a client to its next there are so many rounds at least."""
    return int((config.dp or {}).get("separation") or 1)


def _check_by_server(config: Config, own: dict[str, Any]) -> None:
    """Refuses what noise that a trusted server adds cannot be."""
    check(
        own.get("mode", "central") == "central" and own.get("honest") is None,
        f"dp: {own['noise']} noise is added by a server that is trusted with the sum, and not by"
        " clients: leave mode and honest out",
    )
    check(
        own.get("separation") is not None,
        "dp: separation is needed: from one round of a client to its next there are so many rounds"
        " at least, at most the number of clients divided by the clients per round",
    )
    check(
        config.evaluation_by == "server",
        f"dp: clients who evaluate add noise to what they say; with {own['noise']} noise they add"
        " none: set evaluation_by = 'server'",
    )


def fewest_honest(config: Config) -> int:
    """How many honest clients are in every sum of a full round that can be opened.

    Nobody unmasks unless a quorum of the cohort is in the sum, of which some may be dishonest.
    """
    sizes = range(config.clients_per_round, most_clients(config) + 1)
    return min(quorum(n) - reckoned_dishonest(n, 1) for n in sizes)


def planned_sums(config: Config) -> int:
    """How many sums a client that takes part in everything is asked for, with those to spare.

    Of a round to which a trusted server adds the noise, one sum is released, however often it is
    tried: there is nothing to spare.
    """
    if correlated(config):
        return -(-config.rounds // separation(config))
    asked = config.rounds
    if config.evaluation_by == "clients":
        asked += num_questions(config)
    if config.weights_follow == "heldout":
        asked += config.rounds
    return asked + max(math.ceil(SPARE * asked), FEWEST_SPARE)


def budget_of(dp: dict[str, Any]) -> Budget:
    """What one client may spend in the run, and how it counts: nothing is gained by sampling."""
    counted = accounting.known_cohorts(lambda _: 1 + ROUNDED)
    return accounting.check_budget(Budget(float(dp["epsilon"]), float(dp["delta"]), counted))


def cost(config: Config) -> float:
    """ρ of one sum."""
    assert config.dp is not None
    return accounting.concentrated(float(config.dp["noise_multiplier"]), 1 + ROUNDED)


def privacy_of(
    config: Config, like: Any, asked: Callable[[], int] = int, server: bool = False
) -> "Privacy":
    """The privacy of a federation: how its vectors are made and read.

    Args:
      like: shapes of a contribution.
      asked: how many sums clients were asked for so far.
      server: whether this is the server, which may have noise to add.
    """
    from agnosticfl.channels.dp import Federation, RunFacts, differential_privacy
    from agnosticfl.options import call_with_options

    own = federated_dp(config)
    check(own == config.dp, "dp: the task does not say what a federation needs; make the app anew")
    if correlated(config) and not server:  # the same vectors, without the library for the noise
        own = {key: own[key] for key in own if key not in ("noise", "separation")}
    number = config.clients_per_round
    facts = RunFacts(
        like,
        config.rounds,
        number,
        number,
        sums=planned_sums(config),
        federation=Federation(most_clients(config), asked),
    )
    privacy: Privacy = call_with_options(differential_privacy, own, "dp", facts)
    if config.weights_follow == "train":
        return privacy
    reporting = facts._replace(like=_no_report(like.domain_loss.shape[0]))
    return privacy._replace(reports=call_with_options(differential_privacy, own, "dp", reporting))


def _no_report(num_domains: int) -> "ClientSum":
    """What a report looks like."""
    from agnosticfl.core.contribution import ClientSum

    one, each = np.zeros((), np.float32), np.zeros(num_domains, np.float32)
    return ClientSum((), one, each, each, one)  # type: ignore[arg-type]


def tally_noise(config: Config, readings: Mapping[str, "Reading"]) -> "TallyNoise":
    """The noise of what clients say of a model, which is that of their other vectors."""
    from agnosticfl.channels.dp.noise import by_clients
    from agnosticfl.channels.noised_tallies import TallyNoise
    from agnosticfl.runs.looks import largest_values

    scale = privacy_of(config, _no_report(1)).scale
    return TallyNoise(scale, by_clients, largest_values(config, readings))


def check_private(config: Config, model: "Model", data: "Splits") -> None:
    """Refuses what would leak in a federation of this model, whose clients' data is like `data`."""
    from agnosticfl.core.contribution import contribution_shapes
    from agnosticfl.core.evaluate import metric_readings
    from agnosticfl.runs.build_channel import build_channel
    from agnosticfl.runs.build_privacy import check_learnt
    from agnosticfl.runs.looks import build_looks

    check_learnt(data)
    shapes = contribution_shapes(model, data.train.num_domains)
    privacy = privacy_of(config, shapes, server=True)
    build_channel(config, privacy)
    build_looks(config, data, metric_readings(model, data.test), [*model.exact])


def in_words(config: Config) -> str:
    """What a private federation promises, for those who set it up."""
    dp: dict[str, Any] = config.dp or {}
    said = (
        f"differential privacy: ε {dp['epsilon']:g} at δ {dp['delta']:g} for every client with all"
        " that it holds, which covers each owner of examples (patient) within it;"
        f" {planned_sums(config)} sums of noise multiplier {dp['noise_multiplier']:g}; "
    )
    if correlated(config):
        return said + (
            f"the server is trusted with the sum, to which it adds {dp['noise']} noise; a client"
            f" takes part in one of {separation(config)} rounds at most; bounds are fixed"
        )
    return said + f"the noise of {dp['honest']} honest clients is enough; bounds are fixed"
