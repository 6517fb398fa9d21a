# SPDX-License-Identifier: Apache-2.0
"""What a search will do: which keys with which first values, judged by which domains.

Whatever is wrong with it is found here, before the first trial.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from agnosticfl.errors import BadInput, check
from agnosticfl.runs.axes import Axis, around, axis_of, grid_of, is_number
from agnosticfl.runs.build import assemble, build_engine
from agnosticfl.runs.config import Config, Table, as_table, get_dotted, noised
from agnosticfl.runs.resolve import find_method, has_effect, resolve
from agnosticfl.runs.tasks import put_dotted
from agnosticfl.runs.trials import Load, heldout_of, seen_domains

LOOKS = 20  # in a trial, where the task has too few
# What a search is judged by: the worst domain's metric, or the largest loss over its reference.
WORST, EXCESS = SCORES = ("worst", "excess")
EXCESS_LOSS = "excess loss"  # what that is called in a table


class Search(NamedTuple):
    """What is searched; `tune.json` holds it."""

    task: Table  # what its file holds with `--set`, and its name
    algorithms: tuple[str, ...]
    keys: Mapping[str, tuple[Any, ...]]  # key -> first values; none: around the task's own
    seeds: int
    looks: int  # the last ones, whose mean is a trial's score
    budget: int  # settings of each method
    target: str | None
    rounds: int | None
    score: str = WORST

    def config(self, algorithm: str, settings: Mapping[str, Any], seed: int = 0) -> Config:
        """The configuration of a trial: the settings are stronger than all that the task says."""
        task = copy.deepcopy(self.task)
        own = task.setdefault("algorithms", {}).setdefault(algorithm, {})
        for key, value in settings.items():
            put_dotted(own, key, value)
        config = resolve(task, algorithm, self.target_of(algorithm), seed, self.rounds)
        return msgspec.structs.replace(config, evaluation_every=looking_every(config, self.looks))

    def target_of(self, algorithm: str) -> str | None:
        """The target, for a method that takes one."""
        return self.target if find_method(algorithm).takes_target else None


class Plan(NamedTuple):
    """The search for one method."""

    algorithm: str
    axes: list[Axis]
    metric: str
    higher: bool  # whether more of it is better
    domains: list[list[str]]  # those that count, for each seed
    references: Mapping[str, float] | None  # domain -> the loss over which it is judged, if any
    noised: bool = False  # what held-out clients say

    @property
    def keys(self) -> list[str]:
        """Those that this method uses."""
        return [axis.key for axis in self.axes]


def looking_every(config: Config, looks: int) -> int:
    """Rounds between two looks: as the task has it, or so many that there are about 20."""
    every = config.evaluation_every
    return every if every and config.rounds // every >= looks else max(config.rounds // LOOKS, 1)


def check_settings(asked: Search, sets: Sequence[str]) -> None:
    """A target that nobody takes, or a `--set` that changes nothing, is a mistake."""
    takes = [name for name in asked.algorithms if find_method(name).takes_target]
    names = ", ".join(asked.algorithms)
    check(bool(takes) or asked.target is None, f"none of {names} takes a --target")
    configs = [asked.config(name, {}) for name in asked.algorithms]
    for setting in sets:
        used = any(has_effect(config, setting) for config in configs)
        check(used, f"--set {setting} has no effect on any of {names}")


def plans_of(asked: Search, load: Load, say: Callable[[str], Any]) -> list[Plan]:
    """What to search with each method; whatever is wrong is found here, before the first trial."""
    axes = {name: _axes(asked, name) for name in asked.algorithms}
    for key in asked.keys:
        without = [name for name, own in axes.items() if key not in [axis.key for axis in own]]
        check(len(without) < len(axes), f"--keys {key} has no effect on any of {', '.join(axes)}")
        if without:
            say(f"{key} has no effect on {', '.join(without)}, and is not searched there")
    plans = [_plan(asked, name, own, load) for name, own in axes.items() if own]
    for text in dict.fromkeys(text for plan in plans for text in _remarks(asked, plan, load)):
        say(text)
    return plans


def _axes(asked: Search, algorithm: str) -> list[Axis]:
    """The first grid of a method, of the keys that it uses."""
    base = as_table(asked.config(algorithm, {}))
    found = [
        _axis(asked, algorithm, key, values, get_dotted(base, key))
        for key, values in asked.keys.items()
    ]
    return [axis for axis in found if axis is not None]


def _axis(
    asked: Search, algorithm: str, key: str, values: tuple[Any, ...], own: Any
) -> Axis | None:
    if not all(_applies(asked, algorithm, key, value) for value in values or (own or 1,)):
        return None
    if not values:
        check(
            is_number(own),
            f"--keys {key}: there is no number to start from (it is {own!r} for {algorithm}); give"
            f" {key}=V1,V2,…",
        )
        values = tuple(v for v in around(own) if is_allowed(asked, algorithm, {key: v}))
    if all(type(value) is int for value in values):
        between = values[0] + 0.5
        if is_allowed(asked, algorithm, {key: between}):  # no whole number, only written so
            values = tuple(map(float, values))
    return axis_of(key, values)


def _applies(asked: Search, algorithm: str, key: str, value: Any) -> bool:
    """Whether a method uses this value of a key; one that nobody could use is refused."""
    try:
        config = asked.config(algorithm, {key: value})
    except BadInput:
        # Fine for the task, if the method has something else there: FedAvg a rule of its own.
        plain = copy.deepcopy({k: v for k, v in asked.task.items() if k != "algorithms"})
        put_dotted(plain, key, value)
        resolve(plain, algorithm, asked.target_of(algorithm), 0, asked.rounds)
        return False
    return get_dotted(as_table(config), key) == value


def is_allowed(asked: Search, algorithm: str, settings: Mapping[str, Any]) -> bool:
    """Whether these are values that the keys take."""
    try:
        asked.config(algorithm, settings)
    except BadInput:
        return False
    return True


def _plan(asked: Search, algorithm: str, axes: list[Axis], load: Load) -> Plan:
    first = len(grid_of(axes))
    check(
        first <= asked.budget,
        f"--budget is {asked.budget}, but the first grid of {algorithm} has {first} settings",
    )
    config = asked.config(algorithm, {})
    check(
        config.rounds >= asked.looks,
        f"--looks is {asked.looks}, but a trial has only {config.rounds} rounds",
    )
    model, data = load(config)
    heldout = heldout_of(data, config.task)
    built = assemble(config, model, data, build_engine(config, None, None))
    built.algorithm.init()
    domains: list[list[str]] = []
    private = noised(config, "heldout")  # then it is not told which domains clients have
    for seed in range(asked.seeds):
        own = asked.config(algorithm, {}, seed)
        seen = list(heldout.domains) if private else seen_domains(heldout, own)
        domains.append([d for d in seen if config.target in (None, d)])
        check(bool(domains[-1]), f"no held-out example of {config.target!r} is looked at")
    if asked.score == EXCESS:
        counted = dict.fromkeys(domain for own in domains for domain in own)
        references = _references(asked, counted)
        return Plan(algorithm, axes, EXCESS_LOSS, False, domains, references, private)
    higher = built.readings[config.metric].higher_is_better
    return Plan(algorithm, axes, config.metric, higher, domains, None, private)


def _references(asked: Search, domains: Iterable[str]) -> dict[str, float]:
    """The task's reference losses, which excess-risk has, whatever the method."""
    key = "algorithms.excess-risk.options.references"
    found: dict[str, float] = get_dotted(asked.task, key) or {}
    missing = [domain for domain in domains if domain not in found]
    check(
        not missing,
        f"--score {EXCESS} needs a reference loss of {', '.join(missing)} in [{key}] of the task;"
        " `agnosticfl references` writes it",
    )
    return found


def _remarks(asked: Search, plan: Plan, load: Load) -> list[str]:
    """What a person should know before she trusts the search of a method."""
    remarks: list[str] = []
    config = asked.config(plan.algorithm, {})
    said = resolve(asked.task, plan.algorithm, config.target, 0, asked.rounds).evaluation_every
    if said != config.evaluation_every:
        remarks.append(
            f"evaluation_every is {said}; trials look at held-out clients every"
            f" {config.evaluation_every} rounds"
        )
    for seed, domains in enumerate(plan.domains):
        missing = [d for d in load(config)[1].train.domains if d not in domains]
        if missing and config.target is None:
            remarks.append(
                f"warning: the search does not see {', '.join(map(repr, missing))}: no held-out"
                f" client that seed {seed} looks at has any example of it (evaluation_clients is"
                f" {config.evaluation_clients})"
            )
    return remarks
