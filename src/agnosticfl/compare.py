# SPDX-License-Identifier: Apache-2.0
"""A comparison on the same seeds; the paper's is FedAvg (uniform), FedAvg (target-only) and AFA."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agnosticfl import build
from agnosticfl.config import ALGORITHMS, Config, has_effect, resolve
from agnosticfl.errors import check, choose

PAPER = ("fedavg", "fedavg-target", "afa")

Runner = Callable[[Config, Path], dict[str, Any]]  # runs a configuration in a folder -> summary


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
) -> None:
    """Runs the algorithms in folders below `out`.

    Args:
      run: what to do with each configuration (`experiment.run` with its options filled in).
      algorithms: names from `ALGORITHMS`.
      target: the domain of FedAvg (target-only); the one FedAvg (uniform) serves worst if None.
    """
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")
    chosen = _in_order(algorithms, target)

    def configs(algorithm: str, target: str | None = None) -> list[Config]:
        wanted = target if ALGORITHMS[algorithm].takes_target else None
        return [resolve(task, algorithm, wanted, seed, rounds, sets) for seed in range(seeds)]

    def run_all(configs: list[Config]) -> list[dict[str, Any]]:
        return [run(config, out / f"{config.algorithm}-seed{config.seed}") for config in configs]

    _check_before_running([configs(name, target or "a domain")[0] for name in chosen], target, sets)
    for name in chosen:
        summaries = run_all(configs(name, target))
        if name == "fedavg":
            target = target or _worst(summaries)


def _in_order(algorithms: Sequence[str], target: str | None) -> list[str]:
    """The algorithms in the order of the tables, in which FedAvg is first and tells the target."""
    for name in algorithms:
        choose(name, ALGORITHMS, "algorithm")
    check(bool(algorithms), "no algorithm was given to compare")
    chosen = [name for name in ALGORITHMS if name in algorithms]
    needs = [name for name in chosen if ALGORITHMS[name].takes_target]
    check(bool(needs) or target is None, f"none of {', '.join(chosen)} takes a --target")
    check(
        not needs or target is not None or "fedavg" in chosen,
        f"{', '.join(needs)} needs --target DOMAIN, or fedavg among the algorithms to find it",
    )
    return chosen


def _check_before_running(
    candidates: list[Config], target: str | None, sets: Sequence[str]
) -> None:
    """Bad input is found now, not after the first hours."""
    for config in candidates:
        if config.target is None or config.target == target:
            build.build(config).algorithm.init()
    for setting in sets:
        check(
            any(has_effect(config, setting) for config in candidates),
            f"--set {setting} has no effect on any of {', '.join(c.algorithm for c in candidates)}",
        )


def _worst(summaries: list[dict[str, Any]]) -> str:
    """The domain that most seeds have as their worst; of equals, the first seed's."""
    return statistics.mode(summary["worst_domain"] for summary in summaries)
