# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl data …`: make, look into and check stores. Slow imports wait for their command."""

import contextlib
import importlib
import inspect
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.main

from agnosticfl.cli.plain import PlainGroup, Program
from agnosticfl.options import check_options, options_of
from agnosticfl.registry import LOADERS

data_app = Program(help="Make, look into and check stores of federated data.")

Store = Annotated[Path, typer.Argument(metavar="STORE", help="A store that `prepare` made.")]
Out = Annotated[Path, typer.Option(metavar="STORE", help="Where the new store goes.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the store that is there.")]


class _Loaders(PlainGroup):
    """One command per loader, made from the signature of its `load` when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return LOADERS.names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        return _loader_command(cmd_name)


prepare = Program(cls=_Loaders)
data_app.add_typer(prepare, name="prepare")


@prepare.callback()
def prepare_help() -> None:
    """Make a store from files: prepare FORMAT SOURCE… --out STORE [--options]."""


def _loader_command(name: str) -> Any:
    load = LOADERS.get(name)
    parameters = _parameters(load)

    def command(
        out: Path, overwrite: bool, sources: list[Path] | None = None, **options: Any
    ) -> None:
        from agnosticfl.data.store.writer import check_target

        check_options(options_of(load, skipped=1), options, f"loader {name!r}")
        check_target(out, overwrite)  # before reading, which may take hours
        _write(load(sources or [], **options), out, overwrite)

    # What typer reads instead of the parameters above.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app = Program()
    app.command(name, help=(load.__doc__ or "").partition("\n\n")[0])(command)
    return typer.main.get_command(app)


def _parameters(load: Callable[..., Any]) -> list[inspect.Parameter]:
    """Sources, --out, --overwrite and an option for each keyword of a loader."""
    sources = next(iter(inspect.signature(load).parameters.values()))
    argument = typer.Argument(metavar="SOURCE", help="Files or folders to read.")
    optional = sources.default is not inspect.Parameter.empty
    what = Annotated[list[Path] | None if optional else list[Path], argument]
    parameters = [
        _parameter("sources", what, None if optional else inspect.Parameter.empty),
        _parameter("out", Out, inspect.Parameter.empty),
        _parameter("overwrite", Overwrite, False),
    ]
    shown = inspect.signature(load).parameters
    kinds = {name: p.annotation for name, p in shown.items()} | get_type_hints(load)
    for option in options_of(load, skipped=1).values():
        kind = kinds.get(option.name, str)
        annotation = Annotated[kind, typer.Option(help=option.meaning or None)]
        parameters.append(_parameter(option.name, annotation, option.default))
    return parameters


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _write(source: Any, out: Path, overwrite: bool) -> None:
    from agnosticfl.data.store.reader import open_store
    from agnosticfl.data.store.writer import write_store

    with _bar() as progress:
        write_store(source, out, progress, overwrite)
    for note in source.notes:
        typer.echo(f"warning: {note}", err=True)
    meta = open_store(out).meta
    for split, counts in meta.splits.items():
        typer.echo(f"{out}: {split} has {counts.examples:,} examples of {counts.clients:,} clients")
    for reason, number in meta.left_out.items():
        typer.echo(f"{out}: left out {number:,}: {reason}")


@contextlib.contextmanager
def _bar() -> Generator[Callable[[str, int, int | None], None]]:
    """Shows what is going on, one bar per stage, if somebody is there to see it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bars:
        stages: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int | None) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage)
            bars.update(stages[stage], completed=done, total=total)

        yield progress


@data_app.command()
def info(
    store: Store,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a picture.")] = None,
) -> None:
    """Show shapes, columns, clients, examples and labels per domain and split."""
    from agnosticfl.cli.info import print_summary
    from agnosticfl.data import summary as summaries
    from agnosticfl.data.store.reader import open_store
    from agnosticfl.runs.starter import fitting_models, seen_of

    opened = open_store(store)
    summary = summaries.summarise(opened)
    models = fitting_models(seen_of(opened))
    if plot is not None:
        summaries.plot(opened, summary, plot)
    if as_json:
        found = {**summaries.as_json(opened, summary), "models": models}
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print_summary(opened, summary)
        typer.echo(f"built-in models that fit: {', '.join(models) or 'none'}")


@data_app.command()
def check(store: Store) -> None:
    """Verify every checksum and every promise of a store."""
    from agnosticfl.data.store.check import check_store

    problems = check_store(store)
    for problem in problems:
        typer.echo(f"error: {store}: {problem}", err=True)
    if problems:
        raise typer.Exit(2)
    typer.echo(f"{store}: sound")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A public data set.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path(),
) -> None:
    """Download a public data set, resuming what is there already."""
    fetching = importlib.import_module("agnosticfl.data.fetch")
    with _bar() as progress:
        files = fetching.fetch(name, out, progress)
    for file in files:
        typer.echo(str(file))
