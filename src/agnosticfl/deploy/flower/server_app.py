# SPDX-License-Identifier: Apache-2.0
"""The server's side of a federation: a Flower ServerApp that plays a run and keeps its folder."""

import contextlib
import fcntl
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from agnosticfl.core import tree
from agnosticfl.core.federated import About, FederatedData, Splits, no_examples
from agnosticfl.core.model import Model
from agnosticfl.data.sources.store import about
from agnosticfl.data.store import open_store
from agnosticfl.deploy.flower.farewell import say_farewell
from agnosticfl.deploy.flower.federation import LOG, RoundPolicy
from agnosticfl.deploy.flower.records import to_record
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.flower.whole_grid import use_whole
from agnosticfl.deploy.node.examples import with_domains
from agnosticfl.deploy.schema import check_schema, schema_of
from agnosticfl.deploy.seeing.keeper import watched
from agnosticfl.deploy.task import FILE, FederatedTask, check_program, read_task, terms
from agnosticfl.errors import check
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.runs.about import facts_of, facts_of_store


def server_app(folder: Path | str, model: Model | None = None) -> ServerApp:
    """The ServerApp of the federation whose `task.json` is in `folder`.

    Args:
      model: if it is not one that the task can name (`torch_model(…)` gives one for PyTorch).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        use_whole(grid)
        play(read_task(Path(folder)), context.run_config, grid, model)

    return app


def play(
    task: FederatedTask, options: Mapping[str, Any], grid: Grid, model: Model | None = None
) -> None:
    """Plays the run of `task` to its end; goes on with one that is in its folder already."""
    out = Path(str(options["out"]))
    check(out.is_absolute(), f"out is {str(out)!r}; it must be the absolute path of a run folder")
    policy = RoundPolicy(
        clients=task.config.clients_per_round,
        minimum=int(options["minimum"]) or task.config.clients_per_round,
        over_selection=float(options["over-selection"]),
        deadline=float(options["deadline"]),
        step=float(options["step"]),
        wait=float(options["wait"]),
        attempts=int(options["attempts"]),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with _alone(out), watched(LOG, task, out, str(options["state"]), str(options["log"])):
        strategy = make_strategy(task, options, policy, out, model)
        first = first_params(task, model or MODELS.build(task.config.model, "model"))
        strategy.start(grid, to_record(first), task.config.rounds, policy.deadline)
        say_farewell(grid, task.config.rounds)


@contextlib.contextmanager
def _alone(out: Path) -> Generator[None]:
    """A ServerApp that lost its SuperLink may live on for a moment: one at a time for a folder."""
    with out.with_name(f"{out.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_strategy(
    task: FederatedTask,
    options: Mapping[str, Any],
    policy: RoundPolicy,
    out: Path,
    model: Model | None,
) -> AgnosticStrategy:
    """A secure one if the task's sums are to be secure."""
    data = server_data(task, options)
    if task.config.secure is None:
        return AgnosticStrategy(task.config, out, policy, data, model, terms(task))
    from agnosticfl.deploy.agree import agreement_of
    from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
    from agnosticfl.deploy.flower.standing import Standing
    from agnosticfl.deploy.keys import read_signing_key
    from agnosticfl.deploy.node.file_cache import FileCache
    from agnosticfl.deploy.roster import read_roster
    from agnosticfl.secagg.agreement import Agreement

    file, kept = Path(str(options["roster"])), FileCache[tuple[Agreement, list[str]]]()

    def read() -> tuple[Agreement, list[str]]:
        roster = read_roster(file)
        agreement = agreement_of(task, roster, policy.minimum, int(options.get("dishonest", 1)))
        return agreement, [card.name for card in roster.members]

    def agreed() -> tuple[Agreement, list[str]]:
        return kept.get(file, [file], read)

    key = read_signing_key(Path(str(options["signing-key"])))
    return SecureStrategy(
        task.config, out, policy, data, Standing(*agreed(), latest=agreed), key, model
    )


def first_params(task: FederatedTask, model: Model) -> dict[str, np.ndarray]:
    """w_0, the same as a simulation's with the same seed."""
    return tree.named(jax.jit(model.init)(jax.random.key(task.config.seed)))


def server_data(task: FederatedTask, options: Mapping[str, Any]) -> Splits:
    """What the server holds: examples to test on, of its own store or the task's."""
    check_program(task, FILE)
    path = str(options["data"])
    if not path and task.config.evaluation_by == "clients":
        return no_data(task)
    if not path:
        own: Splits = SOURCES.build(task.config.data, "data")
        check_schema(task.schema, schema_of(facts_of(own)), "the task's own data")
        return own._replace(train=elsewhere(task))
    store = open_store(path)
    check("test" in store.splits, f"the store {path} has no split 'test'")
    check_schema(task.schema, schema_of(facts_of_store(store)), f"the store {path}")
    heldout = store.splits.get("heldout")
    return Splits(
        train=elsewhere(task),
        test=with_domains(store.splits["test"], task.domains),
        heldout=None if heldout is None else with_domains(heldout, task.domains),
        release=store.release,
        about=about(store),
    )


def no_data(task: FederatedTask) -> Splits:
    """What a server knows of examples that only clients have: what they look like."""
    forms: Mapping[str, Any] = task.schema["features"]
    features = {name: (form["dtype"], form["shape"]) for name, form in forms.items()}
    nothing = no_examples(features, task.domains)
    labels = task.schema["labels"]
    known = About(
        labels=None if labels is None else tuple(labels), preparation=task.schema["preparation"]
    )
    return Splits(train=elsewhere(task), test=nothing, about=known)


def elsewhere(task: FederatedTask) -> FederatedData:
    """The data of clients that are somewhere else: their number, and the names of the domains."""
    clients = task.config.clients_per_round
    nobody = np.zeros(clients + 1, np.int64)
    return FederatedData({}, np.zeros(0, np.int32), nobody, range(clients), task.domains)
