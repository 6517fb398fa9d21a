# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl tune`, `bounds` and `references`: what a task should be run with."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from agnosticfl.cli import loading
from agnosticfl.cli.arguments import (
    Cache,
    Out,
    Precision,
    Resume,
    Rounds,
    Seed,
    Sets,
    Target,
    Task,
    names_of,
    settings_of,
)
from agnosticfl.cli.plain import Program


def add_commands(app: Program) -> None:
    """Enters the commands of this file."""
    app.command()(tune)
    app.command()(bounds)
    app.command()(references)


def tune(
    task: Task,
    algorithms: Annotated[
        str | None,
        typer.Option(help="Their names, with commas between them; by default fedavg,afa."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,…",
            help="What to search, and the first values; without values, those around the task's"
            " own. By default client_optimizer.learning_rate; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Of every setting, from 0 on.")] = 3,
    looks: Annotated[
        int, typer.Option(help="The last looks at held-out clients, of which the mean counts.")
    ] = 5,
    budget: Annotated[int, typer.Option(help="The most settings of each algorithm.")] = 12,
    score: Annotated[
        str,
        typer.Option(
            help="What decides: the worst domain's metric (worst), or the largest loss of a domain"
            " over its reference (excess; see `references`)."
        ),
    ] = "worst",
    target: Target = None,
    rounds: Rounds = None,
    out: Out = None,
    sets: Sets = None,
    precision: Precision = None,
    cache: Cache = True,
) -> None:
    """Search for rates, or other keys, on held-out clients; the same command goes on.

    The grid grows until the best value is inside it, as far as the budget goes.
    """
    with loading.begun():
        from agnosticfl.cli.console import print_search, stop_on_signals, watch_search
        from agnosticfl.report.search import write_search
        from agnosticfl.runs import tune as tuning
        from agnosticfl.runs.axes import parse_keys
        from agnosticfl.runs.cache import cache_folder
        from agnosticfl.runs.tuned_task import tuned_file

    folder = out or Path("runs") / f"tune-{Path(task).stem}"
    with stop_on_signals(go_on="the same command goes on") as should_stop:
        with watch_search(cache_folder(cache), should_stop) as watch:
            found = tuning.tune(
                task,
                folder,
                algorithms=names_of(algorithms, tuning.METHODS_BY_DEFAULT),
                keys=parse_keys(keys) if keys else None,
                seeds=seeds,
                looks=looks,
                budget=budget,
                target=target,
                rounds=rounds,
                sets=settings_of(sets, precision=precision),
                score=score,
                watch=watch,
            )
        write_search(found, folder, seeds, looks)
        print_search(found, tuned_file(folder, task), seeds, looks)


def bounds(
    task: Task,
    rounds: Annotated[int, typer.Option(min=2, help="How many to train.")] = 100,
    quantile: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Of the updates' norms, for dp.clip.")
    ] = 0.5,
    sets: Sets = None,
) -> None:
    """Find bounds for --dp by training without privacy on data that is public or synthetic.

    Give a task whose data is like the private data, and is no secret: what is printed tells of it.
    """
    from agnosticfl.runs.public_bounds import find_bounds
    from agnosticfl.runs.resolve import resolve

    found = find_bounds(resolve(task, sets=sets or ()), rounds, quantile)
    typer.echo("--dp " + ",".join(f"{name}={value:.3g}" for name, value in found.items()))


def references(
    task: Task,
    rounds: Rounds = None,
    seed: Seed = 0,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    precision: Precision = None,
    cache: Cache = True,
) -> None:
    """Find the reference losses of excess-risk: train on each domain alone (fedavg-target).

    Writes the task with what was found, ready to run. Short runs will do: --rounds.
    """
    with loading.begun():
        from agnosticfl.cli.console import run_watched, stop_on_signals
        from agnosticfl.runs.cache import cache_folder
        from agnosticfl.runs.references import find_references, write_references

    folder = out or Path("runs") / f"references-{Path(task).stem}"
    settings = settings_of(sets, precision=precision)
    with stop_on_signals() as should_stop:
        run = functools.partial(
            run_watched, resume=resume, should_stop=should_stop, cache=cache_folder(cache)
        )
        found = find_references(task, folder, run, rounds=rounds, seed=seed, sets=settings)
    for domain, loss in found.items():
        typer.echo(f"{domain}: {loss:.6g}")
    typer.echo(f"the task with them: {write_references(task, folder, found, settings)}")
