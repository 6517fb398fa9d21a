# SPDX-License-Identifier: Apache-2.0
"""The command-line program. It assembles only; imports that take time wait for their command."""

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from agnosticfl import __version__
from agnosticfl.data.commands import data_app
from agnosticfl.deploy.commands import deploy_app
from agnosticfl.errors import check, one_line_errors

app = typer.Typer(
    name="agnosticfl",
    help="Agnostic federated learning: one model that serves every domain.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")

Task = Annotated[str, typer.Argument(help="A task's name (see `tasks`) or a TOML file.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds, if not as many as the task says.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Changes a key of the task; may be repeated."),
]
Dp = Annotated[
    str | None,
    typer.Option(
        metavar="epsilon=8,delta=1e-6[,…]",
        help="Differential privacy: short for --set dp.epsilon=8 --set dp.delta=1e-6 …",
    ),
]
Compress = Annotated[
    str | None,
    typer.Option(metavar="bits=8", help="Smaller uploads: short for --set compress.bits=8."),
]
Target = Annotated[str | None, typer.Option(help="Domain of FedAvg (target-only).")]
Secure = Annotated[
    str | None,
    typer.Option(metavar="simulate", help="Add up as secure aggregation does, in fixed point."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")]
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
Out = Annotated[Path | None, typer.Option(help="Folder to write to; below runs/ by default.")]


@app.command()
def run(
    task: Task,
    algorithm: Annotated[
        str, typer.Option(help="Its name, such as afa; see `algorithms`.")
    ] = "afa",
    target: Target = None,
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    out: Out = None,
    secure: Secure = None,
    sets: Sets = None,
    dp: Dp = None,
    compress: Compress = None,
    track: Track = None,
    resume: Resume = False,
    precision: Precision = None,
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
    from agnosticfl import config as configs
    from agnosticfl import processes, report
    from agnosticfl.cache import cache_folder
    from agnosticfl.console import print_report, stop_on_signals, watched_run

    settings = _settings(sets, secure, dp, compress, precision)
    config = configs.resolve(task, algorithm, target, seed, rounds, settings)
    for setting in settings:
        check(
            configs.has_effect(config, setting), f"--set {setting} has no effect on {algorithm!r}"
        )
    folder = out or Path("runs") / f"{config.task}-{algorithm}-seed{seed}"
    options: dict[str, Any] = {"resume": resume, "track": track or (), "cache": cache_folder(cache)}
    together = processes.joined(coordinator, num_processes, process_id)
    with together, stop_on_signals() as should_stop:
        watched_run(config, folder, should_stop=should_stop, **options)
        if processes.is_first():
            print_report(report.write_report([folder], folder), folder)


@app.command()
def compare(
    task: Task,
    algorithms: Annotated[
        str, typer.Option(help="Their names, with commas between them; see `algorithms`.")
    ] = "fedavg,fedavg-target,afa",
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
    precision: Precision = None,
    cache: Cache = True,
) -> None:
    """Run algorithms on the same seeds and print the paper's table."""
    from agnosticfl import compare as comparison
    from agnosticfl import report
    from agnosticfl.cache import cache_folder
    from agnosticfl.console import print_report, stop_on_signals, watched_run

    folder = out or Path("runs") / f"compare-{Path(task).stem}"
    with stop_on_signals() as should_stop:
        comparison.compare(
            task,
            folder,
            functools.partial(
                watched_run,
                resume=resume,
                track=track or (),
                should_stop=should_stop,
                cache=cache_folder(cache),
            ),
            algorithms=[name.strip() for name in algorithms.split(",") if name.strip()],
            seeds=seeds,
            target=target,
            rounds=rounds,
            sets=_settings(sets, secure, dp, compress, precision),
        )
    print_report(report.write_report([folder], folder), folder)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the first folder if not given.")
    ] = None,
) -> None:
    """Make the table, the plots and the page again from run folders."""
    from agnosticfl import report as reports
    from agnosticfl.console import print_report

    place = out or folders[0]
    print_report(reports.write_report(folders, place), place)


@app.command()
def tasks() -> None:
    """List the tasks."""
    from agnosticfl.config import task_description, task_names

    names = task_names()
    for name in names:
        typer.echo(f"{name:{max(map(len, names))}} {task_description(name)}")


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
    tables = {"dp": dp, "compress": compress}
    keys = [f"{table}.{key}" for table, text in tables.items() if text for key in text.split(",")]
    return [*(sets or ()), *named, *keys]


@app.command()
def algorithms() -> None:
    """List the algorithms."""
    from agnosticfl.config import ALGORITHMS

    for name, entry in ALGORITHMS.items():
        typer.echo(f"{name:16} {entry.title.format(target='one domain')}")


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
    with one_line_errors():
        app()
