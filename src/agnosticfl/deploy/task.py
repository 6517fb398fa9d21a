# SPDX-License-Identifier: Apache-2.0
"""What all machines of a federation agree on: the file `task.json` of its Flower app."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from agnosticfl.config import Config
from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json, write_json

FILE = "task.json"
MORE_THAN_A_SUM = ("fedavg-target", "drfa", "q-fedavg")  # who takes part, or what they add, differs
NO_PROGRESS = "no progress"  # how the last words of a server begin that gave up


class FederatedTask(NamedTuple):
    """A configuration, as a run folder holds it, and the names of the domains in their order."""

    config: Config
    domains: tuple[str, ...]


def read_task(folder: Path) -> FederatedTask:
    """The task of the app in `folder`."""
    file = folder / FILE
    try:
        raw: dict[str, Any] = read_json(file)
        return FederatedTask(Config(**raw["config"]), tuple(raw["domains"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{file} is no task of a federation: {error}") from None


def write_task(folder: Path, task: FederatedTask) -> None:
    config = dataclasses.asdict(task.config)
    write_json(folder / FILE, {"config": config, "domains": list(task.domains)})


def federated_config(config: Config, nodes: int) -> Config:
    """The configuration of the same task over `nodes` machines.

    Every node is one client and all that are connected are alike to the server, so the task's own
    ways to sample and to compute have no meaning here. The state is saved after every round.
    """
    check(
        config.algorithm not in MORE_THAN_A_SUM,
        f"algorithm {config.algorithm!r} cannot be deployed: its rounds are more than one sum",
    )
    check(
        config.dp is None,
        "dp cannot be deployed yet: its noise follows from the run's seed, which the server knows",
    )
    return dataclasses.replace(
        config,
        clients_per_round=nodes,
        sampling={"name": "uniform"},
        engine="auto",
        lanes=None,
        checkpoint_every=1,
    )
