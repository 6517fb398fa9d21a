# SPDX-License-Identifier: Apache-2.0
"""From the names in a configuration to the things they name."""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
import optax

from agnosticfl import weights
from agnosticfl.channels.compression import compressed
from agnosticfl.channels.dp import Privacy, RunFacts, differential_privacy
from agnosticfl.channels.dp.noise import independent, scale_among
from agnosticfl.channels.dp.questions import Questions
from agnosticfl.channels.fixed_point import simulated
from agnosticfl.channels.noised_tallies import TallyNoise
from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, ChannelBuilder, plain
from agnosticfl.core.cohorts import SamplerBuilder
from agnosticfl.core.contribution import contribution_shapes, report_shapes
from agnosticfl.core.evaluate import metric_readings
from agnosticfl.core.federated import FederatedData, Splits, main_domain
from agnosticfl.core.metrics import Reading
from agnosticfl.core.model import Model, Need
from agnosticfl.core.precision import model_in_precision
from agnosticfl.engines.base import EngineBuilder
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.engines.reporters import Reporters
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.methods.base import Algorithm, Parts, reports_per_round
from agnosticfl.options import call_with_options, options_of
from agnosticfl.privacy.entropy import Secrets, fresh_secret, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.privacy.secret_cohorts import (
    Silo,
    cohorts_of_silos,
    in_turns,
    secret_cohorts,
    silos_of,
)
from agnosticfl.registry import ENGINES, MODELS, SAMPLERS, SOURCES
from agnosticfl.runs import processes
from agnosticfl.runs.config import Config, as_text
from agnosticfl.runs.judging import Judge, own_parts, simulated_judge
from agnosticfl.runs.looks import Looks, build_looks, largest_values, public_splits
from agnosticfl.runs.optimizers import build_optimizer
from agnosticfl.runs.questions import num_questions
from agnosticfl.runs.resolve import find_method, given_options
from agnosticfl.runs.shared import Shared
from agnosticfl.spans import span

# What training clients decided -> how, and the private way to get it.
LEARNT = {
    "vocabulary": "counted from its training clients, and tells their words; prepare the data anew"
    " with --vocab FILE, a public list of words and counts",
    "preparation": "learnt from its training rows, and tells their means and categories; prepare"
    " the data anew with --like FILE, the preparation.json of public data",
}


class Built(NamedTuple):
    """What a configuration names, built."""

    config: Config  # with what was found out of data and model
    model: Model
    data: Splits
    algorithm: Algorithm
    readings: Mapping[str, Reading]  # metric -> how it is read
    privacy: Privacy | None = None
    judged_by: str = "test"  # the split by which the run is judged; a search never looks at test
    judge: Judge | None = None  # of a run that clients evaluate; else the server does, on `data`
    server_test: FederatedData | None = None  # and what the server could test on beside them
    looks: Looks = MappingProxyType({})  # how clients of a private run are measured
    secrets: Secrets | None = None  # of a private run


def build(
    config: Config,
    lanes: int | None = None,
    tuner: Tuner | None = None,
    shared: Shared | None = None,
) -> Built:
    """Builds data, model and algorithm; every value that is not allowed is refused here.

    Args:
      lanes: what was found for this run before, where the configuration does not say.
      tuner: how to find it otherwise; by a rule if None.
      shared: what runs before it were built from, and this one can be.
    """
    shared = shared or Shared()
    if config.dp is not None:
        tuner = None  # how fast a cohort is tells how many examples it has
    with span("opening"):
        model: Model = shared.made(MODELS.build, config.model, "model")  # first: data takes longer
        data: Splits = shared.made(SOURCES.build, config.data, "data")
    return assemble(config, model, data, build_engine(config, lanes, tuner, shared), shared=shared)


def assemble(
    config: Config,
    model: Model,
    data: Splits,
    engine: EngineBuilder,
    rates_in_state: Collection[str] = (),
    judge: Judge | None = None,
    reports: Reporters | None = None,
    privacy: Privacy | None = None,
    channel: ChannelBuilder | None = None,
    shared: Shared | None = None,
) -> Built:
    """The same for a model, data and an engine that are there already.

    Args:
      judge: clients who evaluate, if they are somewhere else; else those of `data` are meant.
      reports: the same for the losses of what they hold out.
      privacy: the same for the noise that they add.
      rates_in_state: tables whose learning_rate is data of the server's state; see `runs.rates`.
      channel: in place of the one that the configuration names.
      shared: what other runs were built from; `data` is then kept as long as that.
    """
    shared = shared or Shared()
    check_features(model, data, config.model["name"])
    # A checksum of private data would tell whoever guesses the data that she is right.
    digest = None if config.dp is not None else shared.digest(data)
    measuring = model_in_precision(model, config.precision)
    server_test = None
    if config.evaluation_by == "clients":
        own, elsewhere = data.test, judge is not None
        server_test = own if own.num_examples and (elsewhere or config.evaluation_share) else None
        if "test" not in public_splits(config):
            server_test = None
        if judge is None:
            data = kept_by_clients(config, data)
    readings = metric_readings(model, data.test)
    choose(config.metric, readings, f"metric of model {config.model['name']!r}")
    secrets, silos = build_secrets(config), _silos(config, data)
    privacy = privacy or build_privacy(config, model, data, secrets, silos)
    if config.evaluation_by == "clients" and judge is None:
        noise = _noise_of_looks(config, privacy, secrets, readings)
        judge = simulated_judge(config, measuring, data, noise)
    heldout = reports or _followed(config, data)
    looks = build_looks(config, data, readings, [*model.exact])

    def steps(key: str) -> optax.GradientTransformation:
        return shared.made(build_optimizer, getattr(config, key), key, key in rates_in_state)

    parts = Parts(
        model,
        data.train,
        clients_per_round=config.clients_per_round,
        batch_size=config.batch_size,
        client_optimizer=steps("client_optimizer"),
        server_optimizer=steps("server_optimizer"),
        weight_rule=shared.made(
            weights.from_table, config.weight_rule, "weight_rule" in rates_in_state
        ),
        window_size=config.window_size,
        epochs=config.epochs,
        local_steps=config.local_steps,
        normalisation=config.normalisation,
        init_domain_weights=config.init_domain_weights,
        seed=config.seed,
        cohorts=_cohorts(config, secrets, silos),
        engine=engine,
        heldout=heldout,
        channel=channel or build_channel(config, privacy),
        report_channel=None if heldout is None else _report_channel(config, heldout, privacy),
        precision=config.precision,
        mean_model=config.mean_model,
    )
    entry = find_method(config.algorithm)
    known = {k: v for k, v in given_options(config).items() if k in entry.options}
    algorithm = call_with_options(
        entry.make, {**known, **config.options}, f"algorithm {entry.name!r}", parts
    )
    if privacy is not None:
        public = {k: v for k, v in algorithm.choices.items() if k in ("engine", "devices")}
        algorithm = algorithm._replace(choices=public)
    found = msgspec.structs.replace(config, data_digest=digest, model_shapes=model_shapes(model))
    return Built(
        found,
        measuring,
        data,
        algorithm,
        readings,
        privacy,
        judge=judge,
        server_test=server_test,
        looks=looks,
        secrets=secrets,
    )


def _noise_of_looks(
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


def kept_by_clients(config: Config, data: Splits) -> Splits:
    """The data of a simulation in which each client keeps a part of its examples from training."""
    given = {"train": data.train, "heldout": data.heldout, "test": data.test}
    parts = own_parts(config, {name: part for name, part in given.items() if part is not None})
    return data._replace(train=parts["train"], test=parts["test"], heldout=parts.get("heldout"))


def model_shapes(model: Model) -> dict[str, str]:
    """Name -> type and shape of each array of the parameters."""
    return tree.shapes(jax.eval_shape(model.init, jax.random.key(0)))


def build_engine(
    config: Config, lanes: int | None, tuner: Tuner | None, shared: Shared | None = None
) -> EngineBuilder:
    """The engine, with as many lanes and devices as the configuration wants."""
    engine: Any = ENGINES.get(config.engine)
    number = lanes if config.lanes is None else config.lanes
    devices = {"devices": config.devices, "model_devices": config.model_devices}
    wanted = {"lanes": number, **devices, "tuner": tuner}
    wanted |= {} if shared is None else {"pool": shared.pool}
    taken = options_of(engine, skipped=4)
    for key, value in {"lanes": config.lanes, **devices}.items():
        check(
            value is None or key in taken,
            f"{key} is set, but engine {config.engine!r} has no {key}",
        )
    return functools.partial(engine, **{k: v for k, v in wanted.items() if k in taken})


def build_secrets(config: Config) -> Secrets | None:
    """What the noise and the cohorts of a private run follow from, the same in all processes."""
    if config.dp is None:
        return None
    seed: int | None = config.dp.get("test_seed")
    if seed is not None:
        return Secrets(secret_of_a_test(seed))
    return Secrets(bytes.fromhex(processes.from_first(lambda: fresh_secret().hex())))


def _silos(config: Config, data: Splits) -> list[Silo] | None:
    """Where the owners of examples are, if clients are owners."""
    if (config.dp or {}).get("silos") is None:
        return None
    check(
        config.weights_follow == "train",
        "dp: with silos λ follows those who train; set weights_follow = 'train'",
    )
    return silos_of(data.train.domains, main_domain(data.train), config.clients_per_round)


def _cohorts(config: Config, secrets: Secrets | None, silos: list[Silo] | None) -> SamplerBuilder:
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
    train, heldout = data.train, _followed(config, data)
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


def _followed(config: Config, data: Splits) -> FederatedData | None:
    """The held-out clients, if their losses move λ."""
    if config.weights_follow == "train":
        return None
    check(
        data.heldout is not None,
        "weights_follow is 'heldout', but the data has no split 'heldout'",
    )
    check(jax.process_count() == 1, "weights_follow is 'heldout', which needs a single process")
    return data.heldout


def check_features(model: Model, data: Splits, model_name: str) -> None:
    """Refuses data without the features that the model needs, before anything is compiled."""
    parts = {"train": data.train, "heldout": data.heldout, "test": data.test}
    for need, (split, part) in itertools.product(model.needs, parts.items()):
        if part is None or part.num_examples == 0:
            continue
        wrong = _misfit(need, part, data.vocabulary_size)
        check(wrong is None, f"{split} data for model {model_name!r}: {wrong}; needed: {need.text}")
    data.release()


def _misfit(need: Need, data: FederatedData, vocabulary_size: int | None) -> str | None:
    """What is wrong with a feature, or None. Ids are searched only if no vocabulary tells them."""
    name = need.feature
    if name not in data.examples:
        return f"there is no feature {name!r} (but {', '.join(data.examples)})"
    values = data.examples[name]
    if not need.fits(values.shape[1:]):
        return f"feature {name!r} has shape {values.shape[1:]}"
    if not np.issubdtype(values.dtype, np.number if need.ids is None else np.integer):
        return f"feature {name!r} is of type {values.dtype}"
    if need.ids is None:
        return None
    if name == "tokens" and vocabulary_size is not None:  # unknown words have the last id
        fits = vocabulary_size == need.ids
        return None if fits else f"the vocabulary has ids from 0 to {vocabulary_size - 1}"
    low, high = int(values.min()), int(values.max())
    fits = low >= 0 and high < need.ids
    return None if fits else f"feature {name!r} has values from {low} to {high}"


def build_channel(config: Config, privacy: Privacy | None = None) -> ChannelBuilder:
    """What happens to contributions on their way into the sum."""
    if config.compress is not None:
        check(
            privacy is None,
            "compress: rounding a clipped update makes it longer; not with dp: leave it out",
        )
        in_the_clear = call_with_options(compressed, config.compress, "compress")
        if config.secure is None:
            return in_the_clear
        check(
            "bits" in config.compress,
            "compress: every client has its own top_k places, and numbers of different places"
            " cannot be added while masked; under secure aggregation choose bits",
        )
    if config.secure is None:
        return plain if privacy is None else privacy.channel
    bits = int(config.compress["bits"]) if config.compress else None
    own = dict(config.secure)
    del own["name"]
    channel = call_with_options(simulated, own, "secure", config.clients_per_round, bits)
    if privacy is None:
        return channel
    check(
        privacy.mode == "distributed" or privacy.federation is not None,
        "dp: under secure aggregation the server cannot add the noise; mode must be 'distributed',"
        " in which clients do",
    )
    # Whole numbers, which a secure sum adds as they are.
    least = float(own.get("least_alpha", 0.0))
    return lambda like: _with_least_alpha(privacy.channel(like), least)


def _with_least_alpha(channel: Channel, least: float) -> Channel:
    return channel._replace(least_alpha=max(channel.least_alpha, least))


def _report_channel(
    config: Config, heldout: FederatedData | Reporters, privacy: Privacy | None
) -> ChannelBuilder:
    if isinstance(heldout, Reporters):
        return lambda _: heldout.channel
    number = reports_per_round(config.clients_per_round, heldout)
    return build_report_channel(config, number, privacy)


def build_report_channel(
    config: Config, clients: int, privacy: Privacy | None = None
) -> ChannelBuilder:
    """The same for the reports of held-out clients, which have no update to make smaller."""
    if privacy is not None:
        assert privacy.reports is not None
        return privacy.reports.channel
    if config.secure is None:
        return plain
    own = {key: value for key, value in config.secure.items() if key != "name"}
    return call_with_options(simulated, own, "secure", clients, None)
