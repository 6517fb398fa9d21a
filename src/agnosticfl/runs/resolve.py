# SPDX-License-Identifier: Apache-2.0
"""From a task, a method and the command line to one resolved, checked configuration of a run."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agnosticfl.channels.compression import compressed
from agnosticfl.channels.dp import differential_privacy
from agnosticfl.channels.fixed_point import simulated
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.methods.base import Method
from agnosticfl.options import NEEDED, Option, check_options, check_value, options_of
from agnosticfl.registry import ENGINES, METHODS, MODELS, SAMPLERS, SOURCES, Registry
from agnosticfl.runs.config import FOUND, Config, Table, as_table, config_keys, get_dotted
from agnosticfl.runs.optimizers import check_optimizer
from agnosticfl.runs.tasks import parse_set, put_dotted, task_table
from agnosticfl.weights.chaining import check_table as check_rule

GIVEN = {"name": "given from Python"}  # what `config.json` says of a model and data of one's own
NOT_OF_A_TASK = ("task", "algorithm", "target", "seed", *FOUND)
# Keys whose tables are the options of one function: its first parameters are not among them.
TABLES: tuple[tuple[str, Callable[..., Any], int], ...] = (
    ("dp", differential_privacy, 1),
    ("compress", compressed, 0),
    ("secure", simulated, 2),
)
NAMED: Mapping[str, Registry] = {"data": SOURCES, "model": MODELS, "sampling": SAMPLERS}


class Layer(NamedTuple):
    """Some settings, and where they come from."""

    origin: str
    table: Table


def find_method(name: str, what: str = "algorithm") -> Method:
    """The method called `name`, or one of one's own as `package.module:function`."""
    found = METHODS.get(name, what)
    found = getattr(found, "method", found)  # what `@method` gives is a function for Python
    check(
        isinstance(found, Method),
        f"{what} {name!r} is no method; put @agnosticfl.method(…) before the function",
    )
    return found


def title(config: Config) -> str:
    """The method as a table prints it, with its strength and what its uploads go through."""
    try:
        entry = find_method(config.algorithm)
    except BadInput:  # a run folder from a machine that has a method which this one lacks
        name = config.algorithm
    else:
        name = entry.title.format(target=config.target) + _strength(entry, config)
    if config.dp:
        name += f", ε = {config.dp['epsilon']:g}"
        name += "" if config.dp.get("silos") is None else " per owner"
        name += "" if config.dp.get("test_seed") is None else ", NOT PRIVATE"
    for key, value in (config.compress or {}).items():
        name += f", {value} bits" if key == "bits" else f", largest {100 * value:g} %"
    return name


def _strength(entry: Method, config: Config) -> str:
    if entry.parameter is None:
        return ""
    symbol, key = entry.parameter
    value = get_dotted(as_table(config), key)
    return f" ({symbol} = {value:g})" if isinstance(value, int | float) else ""


def resolve(
    task: str | Table,
    algorithm: str = "afa",
    target: str | None = None,
    seed: int = 0,
    rounds: int | None = None,
    sets: Sequence[str] = (),
) -> Config:
    """The configuration of one run of a task: its name, its TOML file, or what such a file holds.

    Weakest first: defaults of `Config`, the task, the task's `[algorithms.NAME]` of the method that
    this one is like, what makes the method what it is, its own `[algorithms.NAME]`, arguments that
    are given. A table without a name changes options of the weaker one; one with a name takes its
    place. `sets` are `key=value` with dotted keys, and change the task itself.
    """
    layers = layers_of(task, algorithm, target, seed, rounds, sets)
    name = task if isinstance(task, str) else task["task"]
    merged = functools.reduce(_over, (layer.table for layer in layers))
    return checked(merged, f"task {name!r}")


def layers_of(
    task: str | Table,
    algorithm: str = "afa",
    target: str | None = None,
    seed: int = 0,
    rounds: int | None = None,
    sets: Sequence[str] = (),
) -> list[Layer]:
    """What a configuration is put together from, the weakest first."""
    entry = find_method(algorithm)
    needs = "needs --target DOMAIN" if entry.takes_target else "takes no --target"
    check((target is not None) == entry.takes_target, f"algorithm {algorithm!r} {needs}")
    table = dict(task_table(task)) if isinstance(task, str) else dict(task)
    name = task if isinstance(task, str) else table.pop("task")
    for key, value in map(parse_set, sets):
        put_dotted(table, key, value)
    own = _of_methods(table.pop("algorithms", {}), name)
    for key in NOT_OF_A_TASK:
        where = "the program finds it" if key in FOUND else "it is an option of the command"
        check(key not in table, f"{key!r} cannot be set here; {where}")
    named = {"task": Path(name).stem, "algorithm": algorithm, "target": target, "seed": seed}
    if rounds is not None:
        named["rounds"] = rounds
    shared = entry.like or algorithm
    return [
        Layer("default", _table_defaults()),
        Layer("task", table),
        Layer(f"[algorithms.{shared}]", own.get(shared, {})),
        Layer(f"algorithm {algorithm}", dict(entry.settings)),
        Layer(f"[algorithms.{algorithm}]", own.get(algorithm, {})),
        Layer("command line", named),
    ]


def _of_methods(tables: Any, task: str) -> Table:
    """The task's `[algorithms.NAME]`, each of which must be a table of a method that there is."""
    check(isinstance(tables, dict), f"algorithms is {tables!r} in task {task!r}; it must be tables")
    for name, own in tables.items():
        find_method(name, f"algorithm in [algorithms] of task {task!r}")
        check(
            isinstance(own, dict),
            f"algorithms.{name} is {own!r} in task {task!r}; it must be a table",
        )
    return tables


def checked(values: Table, where: str) -> Config:
    """The configuration of these values, once every one of them has been looked at."""
    keys = config_keys()
    for key, value in values.items():
        kind = keys[choose(key, keys, f"key in {where}:")].kind
        check_value(
            kind,
            value,
            f"{key} in {where}",
        )
    for key, option in keys.items():
        check(option.default is not NEEDED or key in values, f"{where} lacks the key {key!r}")
    config = Config(**values)
    check_parts(config)
    return config


def check_parts(config: Config) -> None:
    """Says what of the named parts of a configuration is unknown, or has a wrong option."""
    for key, registry in NAMED.items():
        if getattr(config, key) != GIVEN:
            registry.check(getattr(config, key), key)
    for key in ("client_optimizer", "server_optimizer"):
        check_optimizer(getattr(config, key), key)
    check_rule(config.weight_rule)
    ENGINES.get(config.engine)
    for key, known in special_options(config).items():
        table = getattr(config, key)
        if table is not None:
            check_options(known, table, key if key != "options" else config.algorithm)


def special_options(config: Config) -> dict[str, dict[str, Option]]:
    """What those tables may hold that name nothing."""
    entry = find_method(config.algorithm)
    own = {name: o for name, o in entry.options.items() if name not in given_options(config)}
    known = {key: options_of(function, skipped) for key, function, skipped in TABLES}
    simulate = Option("name", Literal["simulate"], NEEDED, "the only one there is")
    return {**known, "secure": {"name": simulate, **known["secure"]}, "options": own}


def given_options(config: Config) -> Table:
    """Options of methods that the configuration has under keys of its own."""
    rate = config.client_optimizer.get("learning_rate")
    return {"target": config.target, "learning_rate": rate}


def has_effect(config: Config, setting: str) -> bool:
    """Whether the run will use this `key=value` (FedAvg, say, has a weight rule of its own)."""
    key, value = parse_set(setting)
    for name in (config.algorithm, find_method(config.algorithm).like):
        key = key.removeprefix(f"algorithms.{name}.")
    return get_dotted(as_table(config), key) == value


def _table_defaults() -> Table:
    """Tables that there are in any case: what a task says of them changes them."""
    options = config_keys().values()
    return {option.name: option.default for option in options if isinstance(option.default, dict)}


def _over(weak: Table, strong: Table) -> Table:
    """The settings of both; where both have one, the stronger's."""
    merged = {**weak, **strong}
    for key, value in strong.items():
        below = weak.get(key)
        if isinstance(value, dict) and "name" not in value and isinstance(below, dict):
            merged[key] = {**below, **value}
    return merged
