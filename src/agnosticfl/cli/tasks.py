# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl init`, `tasks`, `algorithms` and `show`: what there is, and a task of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from agnosticfl.cli.arguments import Algorithm, Rounds, Seed, Sets, Target
from agnosticfl.cli.plain import Program
from agnosticfl.errors import check


def add_commands(app: Program) -> None:
    """Enters the commands of this file."""
    app.command()(init)
    app.command()(tasks)
    app.command()(algorithms)
    app.command()(show)


def init(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store that `prepare` made.")],
    out: Annotated[Path, typer.Option(metavar="TASK.toml", help="Where the new task goes.")],
    model: Annotated[
        str | None,
        typer.Option(help="One that fits (`data info` lists them); the first of them by default."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write a first task for a store, with comments; it runs as it is."""
    from agnosticfl.data.store import open_store
    from agnosticfl.files import write_whole
    from agnosticfl.runs.starter import starter_task

    check(out.suffix == ".toml", f"{out} must end in .toml, as the files of tasks do")
    check(not out.exists() or overwrite, f"{out} exists; --overwrite replaces it")
    write_whole(out, starter_task(open_store(store), str(store), model))
    typer.echo(f"{out}: a task for {store}; try: agnosticfl compare {out} --algorithms fedavg,afa")


def tasks() -> None:
    """List the tasks."""
    from agnosticfl.runs.tasks import task_description, task_names

    names = task_names()
    for name in names:
        typer.echo(f"{name:{max(map(len, names))}} {task_description(name)}")


def algorithms() -> None:
    """List the algorithms: name, title, paper; whether they can be deployed, and masked."""
    from agnosticfl.registry import METHODS
    from agnosticfl.runs.resolve import find_method

    for name in METHODS.names():
        entry = find_method(name)
        can = {"deployable": entry.deployable, "secure": entry.secure}
        words = ", ".join(word for word, yes in can.items() if yes)
        title = entry.title.format(target="one domain")
        typer.echo(f"{name:16} {title:20} {entry.paper:28} {words}".rstrip())


def show(
    task: Annotated[
        str | None, typer.Argument(help="A task's name (see `tasks`) or a TOML file.")
    ] = None,
    algorithm: Algorithm = "afa",
    target: Target = None,
    rounds: Rounds = None,
    seed: Seed = 0,
    sets: Sets = None,
    keys: Annotated[bool, typer.Option("--keys", help="All keys that there are.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="With --keys: as docs/tasks.md has them.")
    ] = False,
) -> None:
    """Explain a task: every key, its value, where the value comes from, and what it means."""
    from agnosticfl.runs import explain

    check((task is None) == keys, "give a TASK to explain, or --keys")
    if task is not None:
        for line in explain.task_lines(task, algorithm, target, seed, rounds, sets or ()):
            typer.echo(line)
    elif as_markdown:
        typer.echo(explain.keys_as_markdown(), nl=False)
    else:
        for line in explain.key_lines():
            typer.echo(line)
