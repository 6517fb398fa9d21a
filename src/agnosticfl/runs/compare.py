# SPDX-License-Identifier: Apache-2.0
"""A comparison on the same seeds; the paper's is FedAvg (uniform), FedAvg (target-only) and AFA."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from agnosticfl.core.evaluate import worst_domain
from agnosticfl.errors import check
from agnosticfl.files import read_json, write_json
from agnosticfl.registry import METHODS
from agnosticfl.runs.ahead import Ahead, Wait, not_ahead
from agnosticfl.runs.build import Built, build
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import find_method, has_effect, resolve

PAPER = ("fedavg", "fedavg-target", "afa")
ORDER = "compare.json"  # in the folder of a comparison: its methods, in the order of its tables

Runner: TypeAlias = Callable[[Config, Path], dict[str, Any]]  # runs a configuration in a folder


def compare(
    task: str,
    out: Path,
    run: Runner,
    *,
    algorithms: Sequence[str] = PAPER,
    seeds: int = 3,
    target: str | None = None,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    say: Callable[[str], Any] = lambda _: None,
    make_built: Callable[[Config], Built] = build,
    ahead: Ahead = not_ahead,
) -> list[dict[str, Any]]:
    """Runs the methods in folders below `out` and returns the summaries.

    Args:
      run: what to do with each configuration (`runs.run.run` with its options filled in).
      algorithms: names of methods, in the order of the tables.
      target: the domain of FedAvg (target-only); the one whose held-out clients FedAvg (uniform)
        serves worst if None.
      say: gets messages for the user.
      make_built: builds what a configuration is about, to see whether it can be.
      ahead: begins to compile for the runs of a method while those before it go on.
    """
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")
    chosen = _to_run(algorithms, target)

    def configs(algorithm: str, target: str | None = None) -> list[Config]:
        wanted = target if find_method(algorithm).takes_target else None
        return [resolve(task, algorithm, wanted, seed, rounds, sets) for seed in range(seeds)]

    first = [configs(name, target or "a domain")[0] for name in chosen]
    _check_before_running(first, target, sets, make_built)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / ORDER, {"algorithms": list(dict.fromkeys(algorithms))})
    waits: dict[str, Wait] = {}

    def begin() -> None:
        """Of the later methods, those of which it is known what they will be."""
        for name in chosen[1:]:
            if name not in waits and (target is not None or not find_method(name).takes_target):
                waits[name] = ahead(configs(name, target)[0])

    begin()
    summaries: list[dict[str, Any]] = []
    for name in chosen:
        if name in waits:
            waits[name]()
        own = [run(config, out / run_folder(config)) for config in configs(name, target)]
        if find_method(name).is_reference:
            target = target or _worst(own, configs(name)[0].metric, bool(_needing(chosen)), say)
            begin()
        summaries += own
    return summaries


def run_folder(config: Config) -> str:
    """What the folder of one run of a comparison is called."""
    return f"{find_method(config.algorithm).name}-seed{config.seed}"


def order_of(folder: Path) -> list[str]:
    """The methods in the order in which tables show them.

    That of the comparison in `folder`, then the paper's three, then all others by name.
    """
    own = read_json(folder / ORDER)["algorithms"] if (folder / ORDER).exists() else []
    return list(dict.fromkeys([*own, *PAPER, *METHODS.names()]))


def _to_run(algorithms: Sequence[str], target: str | None) -> list[str]:
    """The methods in the order to run them: one that tells the target first, its users last."""
    entries = {name: find_method(name) for name in algorithms}
    check(bool(entries), "no algorithm was given to compare")
    needs = _needing(entries)
    names = ", ".join(entries)
    check(bool(needs) or target is None, f"none of {names} takes a --target")
    tells = [name for name, entry in entries.items() if entry.is_reference]
    check(
        not needs or target is not None or bool(tells),
        f"{', '.join(needs)} needs --target DOMAIN, or fedavg among the algorithms to find it",
    )
    return sorted(entries, key=lambda name: (name not in tells, target is None and name in needs))


def _check_before_running(
    candidates: list[Config],
    target: str | None,
    sets: Sequence[str],
    make_built: Callable[[Config], Built],
) -> None:
    """Bad input is found now, not after the first hours."""
    for config in candidates:
        if config.target is None or config.target == target:
            make_built(config).algorithm.init()
    for setting in sets:
        check(
            any(has_effect(config, setting) for config in candidates),
            f"--set {setting} has no effect on any of {', '.join(c.algorithm for c in candidates)}",
        )


def _needing(algorithms: Iterable[str]) -> list[str]:
    return [name for name in algorithms if find_method(name).takes_target]


def _worst(
    summaries: list[dict[str, Any]], metric: str, needed: bool, say: Callable[[str], Any]
) -> str:
    """The domain that most seeds have as their worst; of equals, the first seed's.

    Held-out clients tell it: what is tested must not choose what is trained on.
    """
    if "heldout" not in summaries[0]:
        found = statistics.mode(summary["worst_domain"] for summary in summaries)
        if needed:
            say(
                f"warning: there are no held-out clients, so the target {found!r} was found on test"
                " clients; --target DOMAIN names one"
            )
        return found
    return statistics.mode(
        worst_domain(summary["heldout"], metric, summary["higher_is_better"][metric]).domain
        for summary in summaries
    )
