# SPDX-License-Identifier: Apache-2.0
"""What all machines of a federation agree on: the file `task.json` of its Flower app."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json, write_json
from agnosticfl.runs.config import Config, as_table, from_table

FILE = "task.json"
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
        return FederatedTask(from_table(raw["config"], str(file)), tuple(raw["domains"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{file} is no task of a federation: {error}") from None


def write_task(folder: Path, task: FederatedTask) -> None:
    config = as_table(task.config)
    write_json(folder / FILE, {"config": config, "domains": list(task.domains)})


def federated_config(config: Config, nodes: int) -> Config:
    """The configuration of the same task over `nodes` machines.

    Every node is one client and all that are connected are alike to the server, so the task's own
    ways to sample and to compute have no meaning here. The state is saved after every round.
    """
    from agnosticfl.runs.resolve import find_method  # here: who only reads a task needs no JAX

    check(
        find_method(config.algorithm).deployable,
        f"algorithm {config.algorithm!r} cannot be deployed: its rounds are more than one sum",
    )
    check(
        config.dp is None,
        "dp cannot be deployed yet: its noise follows from the run's seed, which the server knows",
    )
    return msgspec.structs.replace(
        config,
        clients_per_round=nodes,
        sampling={"name": "uniform"},
        engine="auto",
        lanes=None,
        checkpoint_every=1,
    )


def largest_message(config: Config) -> int:
    """Bytes of the numbers in a message of this task: w, in words of 32 bits, twice over.

    An app with a model of its own may need more; what a message has beside is not counted.
    """
    import jax  # here, as above

    from agnosticfl.registry import MODELS

    model = MODELS.build(config.model, "model")
    shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    return 2 * 4 * sum(leaf.size for leaf in shapes)
