# SPDX-License-Identifier: Apache-2.0
"""The paper's comparison: FedAvg (uniform), FedAvg (target-only) and AFA on the same seeds."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agnosticfl import build
from agnosticfl.config import ALGORITHMS, Config, has_effect, resolve
from agnosticfl.errors import check

Runner = Callable[[Config, Path], dict[str, Any]]  # runs a configuration in a folder -> summary


def compare(
    task: str,
    out: Path,
    run: Runner,
    *,
    seeds: int = 3,
    target: str | None = None,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    precision: str | None = None,
) -> None:
    """Runs the three algorithms in folders below `out`.

    Args:
      run: what to do with each configuration (`experiment.run` with its options filled in).
      target: the domain of FedAvg (target-only); the one FedAvg (uniform) serves worst if None.
    """
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")

    def configs(algorithm: str, target: str | None = None) -> list[Config]:
        return [
            resolve(task, algorithm, target, seed, rounds, sets, precision) for seed in range(seeds)
        ]

    def run_all(configs: list[Config]) -> list[dict[str, Any]]:
        return [run(config, out / f"{config.algorithm}-seed{config.seed}") for config in configs]

    _check_before_running(configs, target, sets)
    uniform = run_all(configs("fedavg"))
    run_all(configs("fedavg-target", target or _worst(uniform)))
    run_all(configs("afa"))


def _check_before_running(
    configs: Callable[[str, str | None], list[Config]], target: str | None, sets: Sequence[str]
) -> None:
    """Bad input is found now, not after the first hours."""
    uniform = configs("fedavg", None)[0]
    train = build.build(uniform).data.train
    domain = train.domains[train.domain_index(target)] if target else "a domain"
    candidates = [uniform, configs("fedavg-target", domain)[0], configs("afa", None)[0]]
    build.build(candidates[-1])
    for setting in sets:
        check(
            any(has_effect(config, setting) for config in candidates),
            f"--set {setting} has no effect on any of {', '.join(ALGORITHMS)}",
        )


def _worst(summaries: list[dict[str, Any]]) -> str:
    """The domain that most seeds have as their worst; of equals, the first seed's."""
    return statistics.mode(summary["worst_domain"] for summary in summaries)
