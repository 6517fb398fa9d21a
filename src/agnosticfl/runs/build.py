# SPDX-License-Identifier: Apache-2.0
"""From the names in a configuration to the things they name."""

import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import optax

from agnosticfl import weights
from agnosticfl.channels.dp import Privacy
from agnosticfl.core import tree
from agnosticfl.core.channel import ChannelBuilder
from agnosticfl.core.evaluate import metric_readings
from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.metrics import Reading
from agnosticfl.core.model import Model
from agnosticfl.core.precision import model_in_precision
from agnosticfl.core.programs import shapes_of
from agnosticfl.core.random import any_key
from agnosticfl.engines.base import EngineBuilder
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.engines.reporters import Reporters
from agnosticfl.errors import check, choose
from agnosticfl.methods.base import Algorithm, Parts
from agnosticfl.options import call_with_options, options_of
from agnosticfl.privacy.entropy import Secrets
from agnosticfl.registry import ENGINES, MODELS, SOURCES
from agnosticfl.runs.build_channel import build_channel, report_channel
from agnosticfl.runs.build_privacy import (
    build_cohorts,
    build_privacy,
    build_secrets,
    find_silos,
    noise_of_looks,
)
from agnosticfl.runs.config import Config, public_splits
from agnosticfl.runs.features import check_features
from agnosticfl.runs.judging import Judge, simulated_judge
from agnosticfl.runs.looks import Looks, build_looks
from agnosticfl.runs.optimizers import build_optimizer
from agnosticfl.runs.parts import followed, kept_by_clients
from agnosticfl.runs.resolve import find_method, given_options
from agnosticfl.runs.shared import Shared
from agnosticfl.spans import span


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
    server_test = _server_test(config, data, elsewhere=judge is not None)
    if config.evaluation_by == "clients" and judge is None:
        data = kept_by_clients(config, data)
    readings = metric_readings(model, data.test)
    choose(config.metric, readings, f"metric of model {config.model['name']!r}")
    secrets, silos = build_secrets(config), find_silos(config, data)
    privacy = privacy or build_privacy(config, model, data, secrets, silos)
    if config.evaluation_by == "clients" and judge is None:
        noise = noise_of_looks(config, privacy, secrets, readings)
        judge = simulated_judge(config, measuring, data, noise)
    heldout = reports or followed(config, data)
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
        cohorts=build_cohorts(config, secrets, silos),
        engine=engine,
        heldout=heldout,
        channel=channel or build_channel(config, privacy),
        report_channel=None if heldout is None else report_channel(config, heldout, privacy),
        precision=config.precision,
        mean_model=config.mean_model,
    )
    algorithm = _algorithm(config, parts)
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


def _server_test(config: Config, data: Splits, elsewhere: bool) -> FederatedData | None:
    """What the server could test on beside clients who evaluate, `elsewhere` or in this process."""
    if config.evaluation_by == "server" or "test" not in public_splits(config):
        return None
    known = elsewhere or config.evaluation_share  # else what it has is what clients keep
    return data.test if known and data.test.num_examples else None


def _algorithm(config: Config, parts: Parts) -> Algorithm:
    """The method that the configuration names, made of these parts."""
    entry = find_method(config.algorithm)
    known = {k: v for k, v in given_options(config).items() if k in entry.options}
    options = {**known, **config.options}
    algorithm = call_with_options(entry.make, options, f"algorithm {entry.name!r}", parts)
    if config.dp is None:
        return algorithm
    public = {k: v for k, v in algorithm.choices.items() if k in ("engine", "devices")}
    return algorithm._replace(choices=public)


def model_shapes(model: Model) -> dict[str, str]:
    """Name -> type and shape of each array of the parameters."""
    return tree.shapes(shapes_of(model.init, any_key()))


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
