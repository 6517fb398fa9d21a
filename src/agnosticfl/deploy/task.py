# SPDX-License-Identifier: Apache-2.0
"""What all machines of a federation agree on: the file `task.json` of its Flower app."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from agnosticfl import __version__
from agnosticfl.core.federated import Splits
from agnosticfl.deploy.private import federated_dp
from agnosticfl.deploy.schema import digest, read_schema, schema_of
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_json
from agnosticfl.runs.about import facts_of
from agnosticfl.runs.config import Config, as_table

FILE = "task.json"
FIGURES = "figures.jsonl"  # in a client's --state: what it measured of models, for its operator
NO_PROGRESS = "no progress"  # how the last words of a server begin that gave up
# Sums that clients are asked for: to step, to judge a model, and to move λ by what is held out.
KINDS = TRAINING, EVALUATION, REPORT = "training", "evaluation", "report"
LONGEST_RUN = 64  # bytes of the name of a run, as the messages of secure rounds hold it
LONGEST = 300  # characters of a message about a file that anybody may have written


def sum_called(kind: str, number: int) -> str:
    """What people call one of these sums: round 3, evaluation 1, report 3."""
    return f"{'round' if kind == TRAINING else kind} {number}"


class FederatedTask(NamedTuple):
    """What the machines agree on. `terms` covers every field."""

    config: Config  # as a run folder holds it
    domains: tuple[str, ...]  # their names in their order
    run: str  # the name of the run, which no other run has
    program: str  # the version of agnosticfl
    schema: Mapping[str, Any]  # what gives the clients' numbers their meaning
    server_key: str = ""  # hex of the server's public Ed25519 key; secure rounds need it


Line = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]+\Z", max_length=LONGEST_RUN)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in the file."""

    config: Config
    domains: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
    run: Line
    program: Line
    schema: dict[str, Any]
    server_key: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]


def new_task(config: Config, data: Splits, server_key: str = "") -> FederatedTask:
    """The task of a new run with that configuration, for clients whose data is like `data`."""
    end = f"-{secrets.token_hex(4)}"
    start = f"{config.task}-{config.algorithm}-seed{config.seed}".encode()
    run = start[: LONGEST_RUN - len(end)].decode(errors="ignore") + end
    schema = schema_of(facts_of(data))
    return FederatedTask(config, data.train.domains, run, __version__, schema, server_key)


def terms(task: FederatedTask) -> dict[str, str]:
    """By name, what must be the same on all machines: a version in words, and digests."""
    rest = [as_table(task.config), list(task.domains), task.run, task.server_key]
    return {"program": task.program, "task": digest(rest), "schema": digest(task.schema)}


def check_program(task: FederatedTask, place: Path | str) -> None:
    """Refuses a task that was agreed on with another version; `place` is where it stands."""
    check(
        task.program == __version__,
        f"this is agnosticfl {__version__}, but the task in {place} was made with {task.program};"
        " all machines of a federation need the same version",
    )


def read_task(folder: Path) -> FederatedTask:
    """The task of the app in `folder`, in every part as `write_task` writes it, or refused."""
    file = folder / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
        check(len(set(found.domains)) == len(found.domains), "domains: a name is there twice")
        check(len(found.run.encode()) <= LONGEST_RUN, f"run has over {LONGEST_RUN} bytes")
        task = FederatedTask(
            found.config,
            tuple(found.domains),
            found.run,
            found.program,
            read_schema(found.schema, "schema"),
            found.server_key,
        )
        terms(task)  # every value of it can be written again
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        line = " ".join(str(error).split())[:LONGEST]
        raise BadInput(f"{file} is no task of a federation: {line}") from None
    return task


def write_task(folder: Path, task: FederatedTask) -> None:
    write_json(folder / FILE, task._asdict() | {"config": as_table(task.config)})


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
    config = msgspec.structs.replace(
        config,
        clients_per_round=nodes,
        sampling={"name": "uniform"},
        engine="auto",
        lanes=None,
        checkpoint_every=1,
    )
    if config.dp is None:
        return config
    return msgspec.structs.replace(config, dp=federated_dp(config))


def largest_message(config: Config) -> int:
    """Bytes of the numbers in a message of this task: w, in words of 32 bits, twice over.

    An app with a model of its own may need more; what a message has beside is not counted.
    """
    import jax  # here, as above

    from agnosticfl.registry import MODELS

    model = MODELS.build(config.model, "model")
    shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    return 2 * 4 * sum(leaf.size for leaf in shapes)
