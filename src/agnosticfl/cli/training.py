# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl run`, `compare` and `report`: from a task to its table."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agnosticfl.cli import loading
from agnosticfl.cli.arguments import (
    Algorithm,
    Cache,
    Compress,
    Dp,
    Out,
    Overwrite,
    Precision,
    Resume,
    Rounds,
    Secure,
    Seed,
    Sets,
    Target,
    Task,
    Track,
    Which,
    names_of,
    settings_of,
)
from agnosticfl.cli.plain import Program
from agnosticfl.errors import check, choose
from agnosticfl.spans import span

if TYPE_CHECKING:
    from agnosticfl.runs.config import Config


def add_commands(app: Program) -> None:
    """Enters the commands of this file."""
    app.command()(run)
    app.command()(compare)
    app.command()(report)


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
    with loading.begun(coordinator, num_processes, process_id):
        from agnosticfl import report
        from agnosticfl.cli.console import (
            fail_if_diverged,
            print_report,
            run_watched,
            start_painters,
            stop_on_signals,
        )
        from agnosticfl.runs import processes
        from agnosticfl.runs.cache import cache_folder
        from agnosticfl.runs.compare import run_folder
        from agnosticfl.runs.resolve import has_effect, resolve

    check(not (resume and overwrite), "--resume and --overwrite: give one of them")
    settings = settings_of(sets, secure, dp, compress, precision)
    config = resolve(task, algorithm, target, seed, rounds, settings)
    for setting in settings:
        check(has_effect(config, setting), f"--set {setting} has no effect on {algorithm!r}")
    _check_which(which, config)
    folder = out or Path("runs") / f"{config.task}-{run_folder(config)}"
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "track": track or ()}
    options["cache"] = cache_folder(cache)
    together = processes.joined(coordinator, num_processes, process_id)
    with together, stop_on_signals() as should_stop:
        summary = run_watched(config, folder, should_stop=should_stop, **options)
        if processes.is_first():
            with span("report"):
                done = report.write_report([folder], folder, which, painters=start_painters())
                print_report(done, folder)
    fail_if_diverged([summary])


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
    with loading.begun():
        from agnosticfl import report
        from agnosticfl.cli.console import (
            compiling_ahead,
            fail_if_diverged,
            print_message,
            print_report,
            run_watched,
            start_painters,
            stop_on_signals,
        )
        from agnosticfl.runs import compare as comparison
        from agnosticfl.runs.build import build
        from agnosticfl.runs.cache import cache_folder, remember_compilations
        from agnosticfl.runs.resolve import resolve
        from agnosticfl.runs.shared import Shared

    check(not (resume and overwrite), "--resume and --overwrite: give one of them")
    settings = settings_of(sets, secure, dp, compress, precision)
    _check_which(which, resolve(task, "fedavg", sets=settings))
    folder = out or Path("runs") / f"compare-{Path(task).stem}"
    make_built = functools.partial(build, shared=Shared())
    remember_compilations(cache_folder(cache))  # before anything is built to be checked
    with stop_on_signals() as should_stop:
        summaries = comparison.compare(
            task,
            folder,
            functools.partial(
                run_watched,
                make_built=make_built,
                resume=resume,
                overwrite=overwrite,
                track=track or (),
                should_stop=should_stop,
                cache=cache_folder(cache),
            ),
            algorithms=names_of(algorithms, comparison.PAPER),
            seeds=seeds,
            target=target,
            rounds=rounds,
            sets=settings,
            say=print_message,
            make_built=make_built,
            ahead=compiling_ahead(make_built, cache_folder(cache)),
        )
    with span("report"):
        done = report.write_report([folder], folder, which, painters=start_painters())
        print_report(done, folder)
    fail_if_diverged(summaries)


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


def _check_which(which: str, config: "Config") -> None:
    """Now, not after the training."""
    from agnosticfl.runs.kept_models import WHICH

    choose(which, WHICH, "--which")
    check(
        which != "best" or config.evaluation_every > 0,
        "--which best needs looks at held-out clients: --set evaluation_every=10, for example",
    )
    check(which != "mean" or config.mean_model, "--which mean needs --set mean_model=true")
