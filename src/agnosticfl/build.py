# SPDX-License-Identifier: Apache-2.0
"""From the names in a configuration to the things they name."""

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from agnosticfl.algorithm import agnostic_fedavg, fedavg_target
from agnosticfl.channel import ChannelBuilder, plain
from agnosticfl.client import contribution_shapes, proximal, shrinking
from agnosticfl.cohorts import SAMPLING
from agnosticfl.compression import compressed
from agnosticfl.config import Config, Table
from agnosticfl.data import SOURCES, FederatedData, Splits
from agnosticfl.drfa import drfa
from agnosticfl.engine import ENGINES, WITH_LANES, WITH_PROCESSES, EngineBuilder
from agnosticfl.engine.tuning import Tuner
from agnosticfl.errors import call_with_options, check, choose
from agnosticfl.model import Model, Need
from agnosticfl.models import MODELS
from agnosticfl.precision import model_in_precision
from agnosticfl.privacy import Privacy, Setting, differential_privacy
from agnosticfl.qfedavg import q_fedavg
from agnosticfl.rounds import Algorithm
from agnosticfl.secure.fixed_point import simulated
from agnosticfl.weights import AFTER, BEFORE, RULES, WeightRule, chain

# Algorithms that are more than settings of Algorithm 1.
MAKERS: dict[str, Callable[..., Algorithm]] = {
    "fedavg-target": fedavg_target,
    "drfa": drfa,
    "q-fedavg": q_fedavg,
}


# What a client optimizer's table may hold beside the optimizer's own options.
BEFORE_STEP = {"proximal": proximal, "l2": shrinking}


class Parts(NamedTuple):
    """What a configuration names, built."""

    model: Model
    data: Splits
    algorithm: Algorithm
    privacy: Privacy | None = None


def build(config: Config, lanes: int | None = None, tuner: Tuner | None = None) -> Parts:
    """Builds data, model and algorithm; every value that is not allowed is refused here.

    Args:
      lanes: what was found for this run before, where the configuration does not say.
      tuner: how to find it otherwise; by a rule if None.
    """
    data: Splits = build_named(config.data, SOURCES, "data")
    model: Model = build_named(config.model, MODELS, "model")
    return assemble(config, model, data, build_engine(config, lanes, tuner))


def assemble(config: Config, model: Model, data: Splits, engine: EngineBuilder) -> Parts:
    """The same for a model, data and an engine that are there already."""
    check_features(model, data, config.model["name"])
    privacy = build_privacy(config, model, data)
    make = MAKERS.get(config.algorithm, agnostic_fedavg)
    algorithm = make(
        model,
        data.train,
        **own_options(config, make),
        clients_per_round=config.clients_per_round,
        batch_size=config.batch_size,
        client_optimizer=build_client_optimizer(config.client_optimizer),
        server_optimizer=build_optimizer(config.server_optimizer, "server_optimizer"),
        weight_rule=build_rule(config.weight_rule),
        window_size=config.window_size,
        epochs=config.epochs,
        local_steps=config.local_steps,
        normalisation=config.normalisation,
        init_domain_weights=config.init_domain_weights,
        seed=config.seed,
        cohorts=build_named(config.sampling, SAMPLING, "sampling"),
        engine=engine,
        heldout=_followed(config, data),
        channel=build_channel(config, privacy),
        precision=config.precision,
    )
    return Parts(model_in_precision(model, config.precision), data, algorithm, privacy)


def build_privacy(config: Config, model: Model, data: Splits) -> Privacy | None:
    """The privacy of a run; refused where cohorts depend on what clients hold."""
    if config.dp is None:
        return None
    check(
        config.target is None,
        f"dp: {config.algorithm!r} trains with the clients that have the target's data; its cohorts"
        " would tell who they are",
    )
    check(
        config.sampling == {"name": "uniform"},
        "dp: the accounting holds for uniform cohorts of fixed size only; sampling is"
        f" {config.sampling}",
    )
    train = data.train
    shapes = contribution_shapes(model, train.num_domains)
    setting = Setting(shapes, config.rounds, config.clients_per_round, train.num_clients)
    return call_with_options(differential_privacy, config.dp, "dp", setting)


def _followed(config: Config, data: Splits) -> FederatedData | None:
    """The held-out clients, if their losses move λ."""
    if choose(config.weights_follow, ("train", "heldout"), "value of weights_follow") == "train":
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


def own_options(config: Config, make: Callable[..., Algorithm]) -> Table:
    """What only this algorithm takes: the parameters that it names beside model and data."""
    parameters = inspect.signature(make).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][2:]
    known = {
        "target": config.target,
        "learning_rate": config.client_optimizer.get("learning_rate"),
    }
    given = {name: value for name, value in known.items() if name in names}
    left = [name for name in names if name not in given]
    for name, value in config.options.items():
        what = f"option {name!r} of algorithm {config.algorithm!r}"
        check(name in left, f"unknown {what} (allowed: {', '.join(left) or 'none'})")
        check(type(value) in (int, float), f"{what} is {value!r}; it must be a number")
    for name in left:
        check(name in config.options, f"algorithm {config.algorithm!r} needs the option {name!r}")
    return {**given, **config.options}


def build_client_optimizer(table: Table) -> optax.GradientTransformation:
    """An Optax optimizer; the keys of `BEFORE_STEP` change the gradient before it."""
    own = {key: value for key, value in table.items() if key not in BEFORE_STEP}
    before = [
        call_with_options(make, {"strength": table[key]}, f"{key} client optimizer")
        for key, make in BEFORE_STEP.items()
        if key in table
    ]
    return optax.chain(*before, build_optimizer(own, "client_optimizer"))


def build_engine(config: Config, lanes: int | None, tuner: Tuner | None) -> EngineBuilder:
    """The engine, with as many lanes and devices as the configuration wants."""
    engine: Any = ENGINES[choose(config.engine, ENGINES, "engine")]
    check(
        jax.process_count() == 1 or config.engine in WITH_PROCESSES,
        f"engine {config.engine!r} cannot be shared by processes"
        f" (allowed: {', '.join(WITH_PROCESSES)})",
    )
    if config.engine in WITH_LANES:
        number = lanes if config.lanes is None else config.lanes
        return functools.partial(engine, lanes=number, devices=config.devices, tuner=tuner)
    for key, value in {"lanes": config.lanes, "devices": config.devices}.items():
        check(value is None, f"{key} is set, but engine {config.engine!r} has no {key}")
    return engine


def build_channel(config: Config, privacy: Privacy | None = None) -> ChannelBuilder:
    """What happens to contributions on their way into the sum."""
    if config.compress is not None:
        check(privacy is None, "compress: rounding a clipped update makes it longer; not with dp")
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
    secure = {"simulate": functools.partial(simulated, config.clients_per_round, bits)}
    channel = build_named(config.secure, secure, "secure")
    if privacy is None:
        return channel
    check(
        privacy.mode == "distributed",
        "dp: under secure aggregation the server cannot add the noise; mode must be 'distributed'",
    )
    return privacy.channel  # whole numbers, which a secure sum adds as they are


def build_rule(table: Table) -> WeightRule:
    """The rule that `table` names, in a chain with its `before` and `after`.

    Both are lists of names, or of tables with a name and options.
    """
    own = {key: value for key, value in table.items() if key not in ("before", "after")}
    before, after = (
        [_build_part(part, registry, f"weight_rule.{key}") for part in _list(table, key)]
        for key, registry in (("before", BEFORE), ("after", AFTER))
    )
    rule = build_named(own, RULES, "weight_rule")
    return chain(*before, rule, *after) if before or after else rule


def _list(table: Table, key: str) -> list[Any]:
    value = table.get(key, [])
    check(isinstance(value, list), f"weight_rule.{key} is {value!r}; it must be a list")
    return value


def _build_part(part: Any, registry: Mapping[str, Callable[..., Any]], where: str) -> Any:
    named = {"name": part} if isinstance(part, str) else part
    check(isinstance(named, dict), f"{where} has {part!r}; it must be a name or a table")
    return build_named(named, registry, where)


def build_named(table: Table, registry: Mapping[str, Callable[..., Any]], where: str) -> Any:
    """Calls the entry of `registry` that `table` names, with the table's other keys."""
    options = dict(table)
    name = options.pop("name", None)
    check(isinstance(name, str), f"[{where}] needs a name (allowed: {', '.join(registry)})")
    choose(str(name), registry, where)
    return call_with_options(registry[str(name)], options, f"{where} {name!r}")


def build_optimizer(table: Table, where: str) -> optax.GradientTransformation:
    """Any Optax optimizer with a learning rate, by its name."""
    optimizers = {
        name: function
        for name, function in inspect.getmembers(optax, inspect.isfunction)
        if "learning_rate" in inspect.signature(function).parameters
    }
    return build_named(table, optimizers, where)
