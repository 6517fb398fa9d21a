# SPDX-License-Identifier: Apache-2.0
"""From a task's TOML and the command line to one resolved, checked configuration of a run."""

import dataclasses
import functools
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from agnosticfl.errors import BadInput, check, choose

Table = dict[str, Any]


class AlgorithmEntry(NamedTuple):
    """An algorithm that the command line knows."""

    title: str  # as the paper's tables print it; {target} is the target domain
    settings: Table  # what makes it this algorithm; stronger than the task's own
    takes_target: bool = False
    like: str | None = None  # whose [algorithms.NAME] in a task holds for this one too
    parameter: tuple[str, str] | None = None  # symbol and dotted key of what its title tells


def _domain_rule(title: str, symbol: str, key: str, rule: Table) -> AlgorithmEntry:
    """AFA with another rule for λ."""
    return AlgorithmEntry(title, {"weight_rule": rule}, parameter=(symbol, f"weight_rule.{key}"))


# FedAvg's rates are for batches, and hold for all who divide by the batch.
ALGORITHMS: dict[str, AlgorithmEntry] = {
    "fedavg": AlgorithmEntry(
        "FedAvg (uniform)",
        {
            "normalisation": "batch",
            "weight_rule": {"name": "proportional"},
            "weights_follow": "train",  # λ follows no loss at all
        },
    ),
    "fedavg-target": AlgorithmEntry(
        "FedAvg ({target})",
        {"normalisation": "batch", "weight_rule": {"name": "fixed"}, "weights_follow": "train"},
        takes_target=True,
    ),
    "afa": AlgorithmEntry("AFA", {}),
    "afl": AlgorithmEntry(
        "AFL",
        {
            "normalisation": "batch",
            "local_steps": 1,
            "weight_rule": {"name": "projected_gradient", "learning_rate": 0.01},
        },
        like="fedavg",
    ),
    "drfa": AlgorithmEntry(
        "DRFA",
        {
            "normalisation": "batch",
            "weights_follow": "train",
            "weight_rule": {"name": "projected_gradient", "learning_rate": 0.01},
        },
        like="fedavg",
    ),
    "term": _domain_rule(
        "TERM", "τ", "temperature", {"name": "tilted", "temperature": 1.0, "prior": "counts"}
    ),
    "qffl": _domain_rule("q-FFL", "q", "q", {"name": "q_fair", "q": 1.0, "prior": "counts"}),
    "chi2": _domain_rule(
        "χ²", "τ", "temperature", {"name": "chi_squared", "temperature": 1.0, "prior": "counts"}
    ),
    "cvar": _domain_rule(
        "CVaR",
        "θ",
        "level",
        {"name": "cvar", "level": 0.5, "prior": "counts", "before": ["averaged_loss"]},
    ),
    "group-dro": AlgorithmEntry(
        "Group DRO", {"weight_rule": {"before": [{"name": "adjusted", "constant": 1.0}]}}
    ),
    "q-fedavg": AlgorithmEntry(
        "q-FedAvg",
        {
            "normalisation": "batch",
            "weights_follow": "train",
            "weight_rule": {"name": "proportional"},
            "options": {"q": 1.0},
        },
        like="fedavg",
        parameter=("q", "options.q"),
    ),
    "fedprox": AlgorithmEntry(
        "FedProx",
        {
            "normalisation": "batch",
            "weights_follow": "train",
            "weight_rule": {"name": "proportional"},
            "client_optimizer": {"proximal": 0.01},
        },
        like="fedavg",
        parameter=("μ", "client_optimizer.proximal"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """All that a run's result depends on. A run folder holds it as `config.json`."""

    task: str
    data: Table  # {name, options of that source}
    model: Table  # {name, options of that model}
    # {name of an Optax optimizer, learning_rate (γ_w), its options, proximal (μ of FedProx), l2}
    client_optimizer: Table
    rounds: int  # T
    clients_per_round: int  # c
    batch_size: int  # B
    algorithm: str = "afa"
    target: str | None = None  # fedavg-target: the domain to train on
    options: Table = dataclasses.field(default_factory=dict)  # q-fedavg: {q}
    seed: int = 0
    epochs: int = 1  # E
    local_steps: int | None = None  # the most that a client takes; all of E epochs if not given
    normalisation: str = "client"
    server_optimizer: Table = dataclasses.field(
        default_factory=lambda: {"name": "sgd", "learning_rate": 1.0}
    )
    weight_rule: Table = dataclasses.field(
        default_factory=lambda: {"name": "exponentiated_gradient", "learning_rate": 0.01}
    )
    weights_follow: str = "train"  # whose losses move λ: those of train or of heldout clients
    window_size: int = 1  # r
    init_domain_weights: list[float] | None = None  # λ_0; uniform if not given
    sampling: Table = dataclasses.field(default_factory=lambda: {"name": "uniform"})
    secure: Table | None = None  # {name, bounds of a client}: sums as under secure aggregation
    engine: str = "auto"
    lanes: int | None = None  # L; as many as suit the model and the device if not given
    devices: int | None = None  # of each process; all if not given
    precision: str = "float32"  # of matrix products: float32, tf32 or bf16
    dp: Table | None = None  # options of `privacy.differential_privacy`
    compress: Table | None = None  # options of `compression.compressed`
    metric: str = "loss"  # by which the worst domain is told
    evaluation_every: int = 0  # rounds between two looks at held-out clients; 0 for none
    evaluation_clients: int = 100  # held-out clients looked at, always the same
    evaluation_batch_size: int = 512
    client_spread: bool = False  # at the end, also the variance over clients and their worst tenth
    checkpoint_every: int = 100  # rounds


def task_names() -> list[str]:
    """The built-in tasks."""
    names = [file.name for file in (resources.files("agnosticfl") / "tasks").iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def task_text(name: str) -> str:
    """The TOML of a built-in task, or of a file if `name` is the path of one."""
    if name.endswith(".toml"):
        path = Path(name)
        check(path.is_file(), f"task file {name!r} does not exist")
        return path.read_text(encoding="utf-8")
    choose(name, task_names(), "task")
    return (resources.files("agnosticfl") / "tasks" / f"{name}.toml").read_text(encoding="utf-8")


def task_description(name: str) -> str:
    """The first comment of a task."""
    lines = task_text(name).splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").rstrip() for line in lines[:end])


def resolve(
    task: str | Table,
    algorithm: str = "afa",
    target: str | None = None,
    seed: int = 0,
    rounds: int | None = None,
    sets: Sequence[str] = (),
) -> Config:
    """The configuration of one run of a task: its name, its TOML file, or what such a file holds.

    Weakest first: defaults of `Config`, the task, the task's `[algorithms.NAME]` of the algorithm
    that this one is like, what makes the algorithm what it is, its own `[algorithms.NAME]`,
    arguments that are given. A table without a name changes options of the weaker one; one with a
    name takes its place. `sets` are `key=value` with dotted keys, and change the task itself.
    """
    entry = ALGORITHMS[choose(algorithm, ALGORITHMS, "algorithm")]
    needs = "needs --target DOMAIN" if entry.takes_target else "takes no --target"
    check((target is not None) == entry.takes_target, f"algorithm {algorithm!r} {needs}")
    task, table = _task_table(task)
    for key, value in map(parse_set, sets):
        _put(table, key, value)
    own: Table = table.pop("algorithms", {})
    for name in own:
        choose(name, ALGORITHMS, f"algorithm in [algorithms] of task {task!r}")
    named = {"task": Path(task).stem, "algorithm": algorithm, "target": target, "seed": seed}
    if rounds is not None:
        named["rounds"] = rounds
    for key in ("task", "algorithm", "target", "seed"):
        check(key not in table, f"{key!r} cannot be set here; it is an option of the command")
    layers = (
        table,
        own.get(entry.like or algorithm, {}),
        entry.settings,
        own.get(algorithm, {}),
        named,
    )
    return _config(functools.reduce(_over, layers, _table_defaults()), f"task {task!r}")


def _task_table(task: str | Table) -> tuple[str, Table]:
    """The name of a task, and its keys."""
    if not isinstance(task, str):
        return task["task"], {key: value for key, value in task.items() if key != "task"}
    try:
        return task, tomllib.loads(task_text(task))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"task {task!r} is not valid TOML: {error}") from None


def parse_set(text: str) -> tuple[str, Any]:
    """`a.b=1` as ("a.b", 1). The value is TOML; what is no TOML is a string."""
    key, sign, value = text.partition("=")
    check(bool(sign and key.strip()), f"--set {text!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def has_effect(config: Config, setting: str) -> bool:
    """Whether the run will use this `key=value` (FedAvg, say, has a weight rule of its own)."""
    key, value = parse_set(setting)
    for name in (config.algorithm, ALGORITHMS[config.algorithm].like):
        key = key.removeprefix(f"algorithms.{name}.")
    return _get(dataclasses.asdict(config), key) == value


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """One line about the first setting in which two configurations differ."""
    for key in [*new, *(k for k in old if k not in new)]:
        if old.get(key) != new.get(key):
            return f"{key} was {json.dumps(old.get(key))} and is now {json.dumps(new.get(key))}"
    return None


def flat(config: Config) -> dict[str, str]:
    """All settings as text, by the dotted keys that `--set` takes."""

    def walk(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield prefix + key, text

    return dict(walk(dataclasses.asdict(config)))


def title(config: Config) -> str:
    """The algorithm as a table prints it, with its strength and what its uploads go through."""
    entry = ALGORITHMS[config.algorithm]
    name = entry.title.format(target=config.target)
    if entry.parameter is not None:
        symbol, key = entry.parameter
        value = _get(dataclasses.asdict(config), key)
        name += f" ({symbol} = {value:g})" if isinstance(value, int | float) else ""
    if config.dp:
        name += f", ε = {config.dp['epsilon']:g}"
    for key, value in (config.compress or {}).items():
        name += f", {value} bits" if key == "bits" else f", largest {100 * value:g} %"
    return name


def _config(values: Table, where: str) -> Config:
    hints = typing.get_type_hints(Config)
    for key, value in values.items():
        choose(key, hints, f"key in {where}:")
        check(
            _fits(value, hints[key]),
            f"{key} is {value!r} in {where}; it must be {_type_name(hints[key])}",
        )
    for field in dataclasses.fields(Config):
        no_default = field.default is field.default_factory is dataclasses.MISSING
        check(field.name in values or not no_default, f"{where} lacks the key {field.name!r}")
    config = Config(**values)
    for key in ("rounds", "checkpoint_every"):
        value = getattr(config, key)
        check(value >= 1, f"{key} is {value} in {where}; it must be at least 1")
    every = config.evaluation_every
    check(every >= 0, f"evaluation_every is {every} in {where}; it must be 0 or more")
    return config


def _table_defaults() -> Table:
    makers = {field.name: field.default_factory for field in dataclasses.fields(Config)}
    return {name: make() for name, make in makers.items() if make is not dataclasses.MISSING}


def _over(weak: Table, strong: Table) -> Table:
    """The settings of both; where both have one, the stronger's."""
    merged = {**weak, **strong}
    for key, value in strong.items():
        below = weak.get(key)
        if isinstance(value, dict) and "name" not in value and isinstance(below, dict):
            merged[key] = {**below, **value}
    return merged


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, h) for h in hint.__args__)
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(v, hint.__args__[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, typing.get_origin(hint) or hint)


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", dict: "a table"}
    names |= {list: "a list of numbers", bool: "true or false", types.NoneType: "left out"}
    parts = hint.__args__ if isinstance(hint, types.UnionType) else [hint]
    return " or ".join(names[typing.get_origin(part) or part] for part in parts)


def _get(table: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _put(table: Table, dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for part in path:
        table = table.setdefault(part, {})
        check(type(table) is dict, f"--set {dotted}: {part!r} is not a table")
    table[last] = value
