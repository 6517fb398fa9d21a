# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers of other people, to which a run's numbers go as well (`--track`).

Each is a function that imports its library, and returns what starts a run in it: a context manager
that gives a `Sink`. Where the numbers go is the library's own affair (`MLFLOW_TRACKING_URI`,
`WANDB_MODE` and their siblings).
"""

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from agnosticfl.errors import BadInput, require
from agnosticfl.files import write_whole
from agnosticfl.registry import TRACKERS
from agnosticfl.runs.config import Config, as_table, flat
from agnosticfl.runs.records import Sink
from agnosticfl.runs.resolve import title

Say: TypeAlias = Callable[[str], Any]
Start: TypeAlias = Callable[[Config, Path, Say], AbstractContextManager[Sink]]

BATCH = 1000  # the most metrics that MLflow takes at a time


def tracker(name: str) -> Start:
    """The tracker of that name, or one line about how to get it."""
    return TRACKERS.get(name)()


@TRACKERS.add("mlflow")
def mlflow() -> Start:
    """A run of the experiment `agnosticfl-TASK`."""
    library = require("mlflow", "--track mlflow", "mlflow")
    from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

    @contextlib.contextmanager
    def start(config: Config, folder: Path, say: Say) -> Generator[Sink]:
        client = library.MlflowClient()
        waiting: list[Metric] = []

        def begin() -> str:
            name = f"agnosticfl-{config.task}"
            known = client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else client.create_experiment(name)
            return client.create_run(experiment, run_name=_name(config)).info.run_id

        def write(t: int, scalars: Mapping[str, float]) -> None:
            now = int(1000 * time.time())
            waiting.extend(Metric(_allowed(tag), v, now, t) for tag, v in scalars.items())
            if len(waiting) >= BATCH:
                send()

        def send() -> None:
            """What cannot be sent now waits: a training should not die of it."""
            try:
                while waiting:
                    client.log_batch(run, metrics=waiting[:BATCH])
                    del waiting[:BATCH]
            except library.MlflowException as error:
                say(f"mlflow: {len(waiting)} numbers not sent: {_first_line(error)}")

        try:
            run = _identity(folder / "mlflow-run.txt", begin)
            client.update_run(run, status="RUNNING")
            client.log_batch(run, params=[Param(k, v) for k, v in flat(config).items()])
        except library.MlflowException as error:
            raise BadInput(f"--track mlflow: {_first_line(error)}") from error
        status = "KILLED"
        try:
            yield write
            status = "FINISHED"
        finally:
            send()
            client.set_terminated(run, status)

    return start


@TRACKERS.add("wandb")
def wandb() -> Start:
    """A run of the project `agnosticfl`, in the group of its task."""
    library = require("wandb", "--track wandb", "wandb")

    @contextlib.contextmanager
    def start(config: Config, folder: Path, say: Say) -> Generator[Sink]:
        del say  # the library speaks for itself
        try:
            run = library.init(
                project="agnosticfl",
                group=config.task,
                name=_name(config),
                config=as_table(config),
                dir=folder,
                id=_identity(folder / "wandb-run.txt", lambda: secrets.token_hex(4)),
                resume="allow",
            )
        except library.Error as error:
            raise BadInput(f"--track wandb: {_first_line(error)}") from error
        code = 1
        try:
            yield lambda t, scalars: run.log(dict(scalars), step=t)
            code = 0
        finally:
            run.finish(exit_code=code)

    return start


def _name(config: Config) -> str:
    return f"{title(config)} seed {config.seed}"


def _identity(path: Path, make: Callable[[], str]) -> str:
    """The name a run has in the tracker, kept in its folder: a resumed run goes on in it."""
    if not path.exists():
        write_whole(path, make())
    return path.read_text(encoding="utf-8")


def _allowed(tag: str) -> str:
    return re.sub(r"[^\w\-./ :]", "_", tag)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
