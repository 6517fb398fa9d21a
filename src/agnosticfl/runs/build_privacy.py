# SPDX-License-Identifier: Apache-2.0
"""A private run: its secret, its cohorts, and the noise of all that is opened."""

from collections.abc import Callable, Mapping

from agnosticfl.channels.dp import Privacy, RunFacts, differential_privacy
from agnosticfl.channels.dp.noise import independent, scale_among
from agnosticfl.channels.dp.questions import Questions
from agnosticfl.channels.noised_tallies import TallyNoise
from agnosticfl.core.cohorts import SamplerBuilder
from agnosticfl.core.contribution import contribution_shapes, report_shapes
from agnosticfl.core.federated import Splits, main_domain
from agnosticfl.core.metrics import Reading
from agnosticfl.core.model import Model
from agnosticfl.errors import BadInput, check
from agnosticfl.methods.base import reports_per_round
from agnosticfl.options import call_with_options
from agnosticfl.privacy.entropy import Secrets, fresh_secret, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.privacy.secret_cohorts import (
    Silo,
    cohorts_of_silos,
    in_turns,
    secret_cohorts,
    silos_of,
)
from agnosticfl.registry import SAMPLERS
from agnosticfl.runs import processes
from agnosticfl.runs.config import Config, as_text
from agnosticfl.runs.looks import largest_values
from agnosticfl.runs.parts import followed
from agnosticfl.runs.questions import num_questions

# What training clients decided -> how, and the private way to get it.
LEARNT = {
    "vocabulary": "counted from its training clients, and tells their words; prepare the data anew"
    " with --vocab FILE, a public list of words and counts",
    "preparation": "learnt from its training rows, and tells their means and categories; prepare"
    " the data anew with --like FILE, the preparation.json of public data",
}


def build_secrets(config: Config) -> Secrets | None:
    """What the noise and the cohorts of a private run follow from, the same in all processes."""
    if config.dp is None:
        return None
    seed: int | None = config.dp.get("test_seed")
    if seed is not None:
        return Secrets(secret_of_a_test(seed))
    return Secrets(bytes.fromhex(processes.from_first(lambda: fresh_secret().hex())))


def find_silos(config: Config, data: Splits) -> list[Silo] | None:
    """Where the owners of examples are, if clients are owners."""
    if (config.dp or {}).get("silos") is None:
        return None
    check(
        config.weights_follow == "train",
        "dp: with silos λ follows those who train; set weights_follow = 'train'",
    )
    return silos_of(data.train.domains, main_domain(data.train), config.clients_per_round)


def build_cohorts(
    config: Config, secrets: Secrets | None, silos: list[Silo] | None
) -> SamplerBuilder:
    """Who takes part; in a private run nobody can compute it from the seed."""
    if secrets is None:
        return SAMPLERS.build(config.sampling, "sampling")
    correlated = (config.dp or {}).get("noise", "independent") != "independent"
    if silos is not None:
        return cohorts_of_silos(secrets, silos)
    return in_turns if correlated else secret_cohorts(secrets)


def build_privacy(
    config: Config,
    model: Model,
    data: Splits,
    secrets: Secrets | None,
    silos: list[Silo] | None = None,
) -> Privacy | None:
    """The privacy of a run; refused where cohorts depend on what clients hold."""
    if config.dp is None:
        return None
    check(
        config.target is None,
        f"dp: {config.algorithm!r} trains with the clients that have the target's data; its cohorts"
        " would tell who they are: choose one that trains with all, such as 'afa'",
    )
    check(
        config.sampling == {"name": "uniform"},
        "dp: the accounting holds for uniform cohorts of fixed size only; sampling is"
        f" {as_text(config.sampling)}: leave it out",
    )
    check_learnt(data)
    train, heldout = data.train, followed(config, data)
    shapes = contribution_shapes(model, train.num_domains)
    number = config.clients_per_round
    facts = RunFacts(shapes, config.rounds, number, train.num_clients, secrets, silos)
    facts = _with_questions(facts, config, data)
    privacy: Privacy = call_with_options(differential_privacy, config.dp, "dp", facts)
    if heldout is None:
        return privacy
    number = reports_per_round(config.clients_per_round, heldout)
    shapes = report_shapes(train.num_domains)
    facts = RunFacts(shapes, config.rounds, number, heldout.num_clients, secrets)
    own = {
        key: value for key, value in config.dp.items() if key != "population"
    }  # of those who train
    where = "dp of the held-out clients"
    return privacy._replace(reports=call_with_options(differential_privacy, own, where, facts))


def _with_questions(facts: RunFacts, config: Config, data: Splits) -> RunFacts:
    """The same with what those who train are asked of models, which counts against their budget.

    Sums of noise that clients add themselves are all alike; what a server adds is found for each.
    """
    if config.evaluation_by == "server":
        return facts
    assert config.dp is not None
    check(
        config.dp.get("silos") is None,
        "dp: with silos clients are the owners of examples, whom nobody asks; let the server"
        " evaluate, evaluation_by = 'server'",
    )
    check(
        config.weights_follow == "train",
        "dp: what clients hold out would count against those who train; set weights_follow ="
        " 'train'",
    )
    number = num_questions(config)
    if config.dp.get("mode") == "distributed":
        return facts._replace(sums=config.rounds + number)
    clients = max(part.num_clients for part in (data.heldout, data.test) if part is not None)
    rows = 1 + len({"loss", config.metric})  # of a `noised_tallies` vector, in each domain
    return facts._replace(questions=Questions(number, clients, rows * data.train.num_domains))


def check_learnt(data: Splits) -> None:
    """Refuses data of which something was learnt from training clients, which a run would tell."""
    for name in data.about.learnt:
        raise BadInput(f"dp: the {name} of this data was {LEARNT[name]}")


def noise_of_looks(
    config: Config,
    privacy: Privacy | None,
    secrets: Secrets | None,
    readings: Mapping[str, Reading],
) -> Callable[[int], TallyNoise] | None:
    """Number of clients who evaluate -> the noise of their sum: its own, or a round's from each."""
    if privacy is None or secrets is None:
        return None
    source, largest = noise_source(secrets), largest_values(config, readings)
    if (answers := privacy.answers) is not None:
        return lambda _: TallyNoise(answers.scale, independent(source, 1), largest)

    def noise(clients: int) -> TallyNoise:
        scale = scale_among(privacy.scale.noise, clients, min(privacy.scale.shares, clients))
        return TallyNoise(scale, independent(source, clients), largest)

    return noise
