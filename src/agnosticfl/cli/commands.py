# SPDX-License-Identifier: Apache-2.0
"""The commands. They assemble only; imports that take time wait for their command."""

import atexit
import functools
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agnosticfl import __version__
from agnosticfl.cli.arguments import (
    Algorithm,
    Dp,
    Out,
    Resume,
    Rounds,
    Seed,
    Sets,
    Target,
    Task,
    Which,
    keys_of,
)
from agnosticfl.cli.data import data_app
from agnosticfl.cli.deploy import deploy_app
from agnosticfl.cli.model import add_commands
from agnosticfl.cli.plain import Program
from agnosticfl.errors import check, choose, one_line_errors
from agnosticfl.spans import span

if TYPE_CHECKING:
    from agnosticfl.runs.config import Config

app = Program(
    name="agnosticfl", help="Agnostic federated learning: one model that serves every domain."
)

app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")

Compress = Annotated[
    str | None,
    typer.Option(metavar="bits=8", help="Smaller uploads: short for --set compress.bits=8."),
]
Secure = Annotated[
    str | None,
    typer.Option(metavar="simulate", help="Add up as secure aggregation does, in fixed point."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Send the numbers to mlflow or wandb as well; may be repeated."),
]
Precision = Annotated[
    str | None,
    typer.Option(help="Of matrix products on accelerators: float32 (the default), tf32 or bf16."),
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache", help="Remember compiled rounds between runs ($AGNOSTICFL_CACHE)."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is there.")]


@app.command()
def run(
    task: Task,
    algorithm: Algorithm = "afa",
    target: Target = None,
    rounds: Rounds = None,
    seed: Seed = 0,
    out: Out = None,
    secure: Secure = None,
    sets: Sets = None,
    dp: Dp = None,
    compress: Compress = None,
    track: Track = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    precision: Precision = None,
    which: Which = "last",
    cache: Cache = True,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 of several listens.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many there are.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Which this is, from 0 on.")] = None,
) -> None:
    """Train once and write a run folder.

    Several processes, on one machine or many, train together if each is started with the same
    command but for --process-id, or by SLURM's srun or Open MPI's mpirun. Process 0 writes.
    """
    from agnosticfl.runs import processes

    processes.start_device_ahead(coordinator, num_processes, process_id)
    from agnosticfl import report
    from agnosticfl.cli.console import (
        fail_if_diverged,
        painters,
        print_report,
        stop_on_signals,
        watched_run,
    )
    from agnosticfl.runs.cache import cache_folder
    from agnosticfl.runs.compare import run_folder
    from agnosticfl.runs.resolve import has_effect, resolve

    check(not (resume and overwrite), "--resume and --overwrite: give one of them")
    settings = _settings(sets, secure, dp, compress, precision)
    config = resolve(task, algorithm, target, seed, rounds, settings)
    for setting in settings:
        check(has_effect(config, setting), f"--set {setting} has no effect on {algorithm!r}")
    _check_which(which, config)
    folder = out or Path("runs") / f"{config.task}-{run_folder(config)}"
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "track": track or ()}
    options["cache"] = cache_folder(cache)
    together = processes.joined(coordinator, num_processes, process_id)
    with together, stop_on_signals() as should_stop:
        summary = watched_run(config, folder, should_stop=should_stop, **options)
        if processes.is_first():
            with span("report"):
                done = report.write_report([folder], folder, which, painters=painters())
                print_report(done, folder)
    fail_if_diverged([summary])


@app.command()
def compare(
    task: Task,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Their names, with commas between them (see `algorithms`); by default the paper's"
            " three: FedAvg (uniform), FedAvg (target-only) and AFA."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 3,
    target: Target = None,
    rounds: Rounds = None,
    out: Out = None,
    secure: Secure = None,
    sets: Sets = None,
    dp: Dp = None,
    compress: Compress = None,
    track: Track = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    precision: Precision = None,
    which: Which = "last",
    cache: Cache = True,
) -> None:
    """Run algorithms on the same seeds and print the paper's table."""
    from agnosticfl.runs import processes

    processes.start_device_ahead()
    from agnosticfl import report
    from agnosticfl.cli.console import (
        compiling_ahead,
        fail_if_diverged,
        messages,
        painters,
        print_report,
        stop_on_signals,
        watched_run,
    )
    from agnosticfl.runs import compare as comparison
    from agnosticfl.runs.build import build
    from agnosticfl.runs.cache import cache_folder
    from agnosticfl.runs.resolve import resolve
    from agnosticfl.runs.shared import Shared

    check(not (resume and overwrite), "--resume and --overwrite: give one of them")
    settings = _settings(sets, secure, dp, compress, precision)
    _check_which(which, resolve(task, "fedavg", sets=settings))
    folder = out or Path("runs") / f"compare-{Path(task).stem}"
    make_built = functools.partial(build, shared=Shared())
    with stop_on_signals() as should_stop:
        summaries = comparison.compare(
            task,
            folder,
            functools.partial(
                watched_run,
                make_built=make_built,
                resume=resume,
                overwrite=overwrite,
                track=track or (),
                should_stop=should_stop,
                cache=cache_folder(cache),
            ),
            algorithms=_names(algorithms, comparison.PAPER),
            seeds=seeds,
            target=target,
            rounds=rounds,
            sets=settings,
            say=messages,
            make_built=make_built,
            ahead=compiling_ahead(make_built, cache_folder(cache)),
        )
    with span("report"):
        done = report.write_report([folder], folder, which, painters=painters())
        print_report(done, folder)
    fail_if_diverged(summaries)


@app.command()
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
    from agnosticfl.cli.console import print_search, stop_on_signals, watch_search
    from agnosticfl.report.tuned import write_search
    from agnosticfl.runs import tune as tuning
    from agnosticfl.runs.axes import parse_keys
    from agnosticfl.runs.cache import cache_folder
    from agnosticfl.runs.tuned import tuned_file

    folder = out or Path("runs") / f"tune-{Path(task).stem}"
    with stop_on_signals(go_on="the same command goes on") as should_stop:
        with watch_search(cache_folder(cache), should_stop) as watch:
            found = tuning.tune(
                task,
                folder,
                algorithms=_names(algorithms, tuning.METHODS_BY_DEFAULT),
                keys=parse_keys(keys) if keys else None,
                seeds=seeds,
                looks=looks,
                budget=budget,
                target=target,
                rounds=rounds,
                sets=_settings(sets, None, None, None, precision),
                score=score,
                watch=watch,
            )
        write_search(found, folder, seeds, looks)
        print_search(found, tuned_file(folder, task), seeds, looks)


@app.command()
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


@app.command()
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
    from agnosticfl.cli.console import stop_on_signals, watched_run
    from agnosticfl.runs.cache import cache_folder
    from agnosticfl.runs.references import find_references, write_references

    folder = out or Path("runs") / f"references-{Path(task).stem}"
    settings = _settings(sets, None, None, None, precision)
    with stop_on_signals() as should_stop:
        run = functools.partial(
            watched_run, resume=resume, should_stop=should_stop, cache=cache_folder(cache)
        )
        found = find_references(task, folder, run, rounds=rounds, seed=seed, sets=settings)
    for domain, loss in found.items():
        typer.echo(f"{domain}: {loss:.6g}")
    typer.echo(f"the task with them: {write_references(task, folder, found, settings)}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the first folder if not given.")
    ] = None,
    which: Which = "last",
    per_client: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.parquet",
            help="Write the values of single clients too; a name in .csv gives that.",
        ),
    ] = None,
) -> None:
    """Make the table, the plots and the page again from run folders."""
    from agnosticfl import report as reports
    from agnosticfl.cli.console import print_report

    place = out or folders[0]
    print_report(reports.write_report(folders, place, which, per_client), place)


add_commands(app)


@app.command()
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


@app.command()
def tasks() -> None:
    """List the tasks."""
    from agnosticfl.runs.tasks import task_description, task_names

    names = task_names()
    for name in names:
        typer.echo(f"{name:{max(map(len, names))}} {task_description(name)}")


@app.command()
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


@app.command()
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


def _check_which(which: str, config: "Config") -> None:
    """Now, not after the training."""
    from agnosticfl.runs.kept import WHICH

    choose(which, WHICH, "--which")
    check(
        which != "best" or config.evaluation_every > 0,
        "--which best needs looks at held-out clients: --set evaluation_every=10, for example",
    )
    check(which != "mean" or config.mean_model, "--which mean needs --set mean_model=true")


def _names(text: str | None, default: Sequence[str]) -> Sequence[str]:
    """Names with commas between them."""
    if text is None:
        return default
    return [name.strip() for name in text.split(",") if name.strip()]


def _settings(
    sets: list[str] | None,
    secure: str | None,
    dp: str | None,
    compress: str | None,
    precision: str | None,
) -> list[str]:
    """What the command line changes of the task; `a=1,b=2` are keys of one table."""
    values = {"secure.name": secure, "precision": precision}
    named = [f"{key}={value}" for key, value in values.items() if value]
    return [*(sets or ()), *named, *keys_of("dp", dp), *keys_of("compress", compress)]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agnosticfl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Runs the program. Bad input ends in one line and status 2, a stopped run in status 130."""
    atexit.register(gc.freeze)  # else a process at its end would search all it has for garbage
    with one_line_errors():
        app()
