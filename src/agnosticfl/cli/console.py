# SPDX-License-Identifier: Apache-2.0
"""What a person at a terminal sees of a run, and how she stops it."""

import atexit
import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agnosticfl.engines.helpers.tuning import stopwatch
from agnosticfl.report import Comparison, short_help, tables
from agnosticfl.report.painters import Painters
from agnosticfl.report.terminal import terminal
from agnosticfl.runs import processes
from agnosticfl.runs.ahead import Ahead, MakeBuilt, compile_rounds, not_ahead
from agnosticfl.runs.cache import remember_compilations
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import Record
from agnosticfl.runs.resolve import title
from agnosticfl.runs.run import Stopped, run

if TYPE_CHECKING:
    from agnosticfl.runs.tune import Found, Watch

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal to draw a bar on


def print_message(text: str) -> None:
    """Prints to the user, beside the results (on stderr)."""
    typer.echo(text, err=True)


def print_report(comparison: Comparison, folder: Path) -> None:
    """The tables, how to read them, and where the rest is."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    for grid in tables(comparison, short=True):
        console.print(terminal(grid, console.width))
    console.print(short_help(comparison), style="dim", highlight=False, markup=False)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, highlight=False)


def run_watched(
    config: Config, folder: Path, *, cache: Path | None, **options: Any
) -> dict[str, Any]:
    """Runs with the progress shown; `options` are those of `runs.run.run`.

    Of several processes, one shows it. What can be used again is kept in the folder `cache`.
    """
    remember_compilations(cache)
    tuner = stopwatch(None if cache is None else cache / "lanes.json")
    silent = not processes.is_first()
    say = _nothing if silent else print_message
    with watch(config, silent) as on_round:
        return run(config, folder, on_round=on_round, say=say, tuner=tuner, **options)


def compiling_ahead(make_built: MakeBuilt, cache: Path | None) -> Ahead:
    """How a comparison compiles for its later runs; `cache` is as for `run_watched`."""
    if jax.default_backend() == "cpu":
        return not_ahead
    tuner = stopwatch(None if cache is None else cache / "lanes.json", measuring=False)
    return functools.partial(compile_rounds, make_built, tuner)


@contextlib.contextmanager
def watch_search(cache: Path | None, should_stop: Callable[[], bool]) -> "Generator[Watch]":
    """Shows the trials of a search and, within them, the rounds of the one that runs."""
    from agnosticfl.runs.tune import Watch

    remember_compilations(cache)
    tuner = stopwatch(None if cache is None else cache / "lanes.json")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    columns = (*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        trials = progress.add_task("trials", total=None, state="")
        rounds = progress.add_task("rounds", total=None, state="")

        def on_trial(config: Config, words: str, done: int, known: int) -> None:
            name = f"{title(config)}, {words}, seed {config.seed}"
            progress.update(trials, completed=done, total=known, state=name)
            progress.reset(rounds, total=config.rounds, state="compiling")
            if not console.is_terminal:
                print_message(f"trial {done + 1} of {known} so far: {name}")

        def on_round(record: Record) -> None:
            progress.update(rounds, completed=record["round"], state=_state(record))

        above = functools.partial(console.print, markup=False, highlight=False)  # the bars
        say = above if console.is_terminal else print_message
        yield Watch(on_trial, on_round, say, should_stop, tuner)


def print_search(found: "Sequence[Found]", task: Path, seeds: int, looks: int) -> None:
    """A table for each method, what to make of it, and where the task is that has it."""
    from agnosticfl.report.search import search_table
    from agnosticfl.runs.tune import in_sentences

    console = Console(width=None if sys.stdout.isatty() else 160)
    for each in found:
        console.print(terminal(search_table(each, seeds, looks), console.width))
        for line in in_sentences(each, seeds):
            console.print(line, soft_wrap=True, highlight=False)
    console.print(f"the task with what was found: {task}", soft_wrap=True, highlight=False)


def fail_if_diverged(summaries: Sequence[dict[str, Any]]) -> None:
    """Status 1 if the loss of a run exploded: its folder is complete, its model is of no use."""
    bad = [f"{s['algorithm']} seed {s['seed']}" for s in summaries if s.get("diverged")]
    if len(summaries) > 1 and bad:
        print_message(f"{len(bad)} of {len(summaries)} runs diverged: {', '.join(bad)}")
    if bad:
        raise typer.Exit(1)


def _nothing(_: Any) -> None: ...


@functools.cache
def start_painters() -> Painters:
    """Starts what draws, once; if need be, a thread loads it here, too, while the rounds go on."""
    helpers = Painters()
    if helpers.draw_here:
        drawing = ("agnosticfl.report.drawing",)
        threading.Thread(
            target=importlib.import_module, args=drawing, name="agnosticfl-plots"
        ).start()
    atexit.register(helpers.close)
    return helpers


@contextlib.contextmanager
def watch(config: Config, silent: bool = False) -> Generator[Callable[[Record], None]]:
    """Shows rounds, rounds/s, the worst domain's loss and λ while the block runs."""
    if silent:
        yield _nothing
        return
    name = f"{config.task} {title(config)} seed {config.seed}"
    console = Console(stderr=True)
    on_terminal = console.is_terminal  # once: the system takes longer to say so than a round
    shown = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    columns = (*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, disable=not on_terminal) as progress:
        bar = progress.add_task(name, total=config.rounds, state="compiling")
        first: tuple[int, float] | None = None  # round and time: compilation does not count

        def on_round(record: Record) -> None:
            nonlocal first, shown
            now = time.monotonic()
            if first is None:
                start_painters()
            first = first or (record["round"], now)
            rate = (record["round"] - first[0]) / max(now - first[1], 1e-9)
            if not on_terminal and now - shown <= PLAIN_SECONDS:
                return  # to draw a bar that nobody sees takes longer than a round
            state = f"{rate:.1f} rounds/s  {_state(record)}"
            if on_terminal:
                progress.update(bar, completed=record["round"], state=state)
            else:
                print_message(f"{name}: round {record['round']} of {config.rounds}  {state}")
                shown = now

        yield on_round


def _state(record: Record) -> str:
    losses = [loss for loss in record["loss"] if loss is not None]
    weights = " ".join(f"{w:.2f}" for w in record["domain_weights"][:6])
    left_out = f"  {record['left_out']} clients left out" if record["left_out"] else ""
    clipped = record.get("clients_clipped", 0)
    clipped = f"  {clipped:.0f} clients clipped" if clipped else ""
    return f"worst loss {max(losses, default=float('nan')):.4g}  λ {weights}{left_out}{clipped}"


@contextlib.contextmanager
def stop_on_signals(
    answer: str = "stopping after this round; its state will be saved",
    go_on: str = "add --resume to the same command to go on",
) -> Generator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM asks the run to stop, and gets `answer`; a second one stops it at once.

    Args:
      go_on: what to do about a run that was stopped.
    """
    asked = False

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, at_once)
        print_message(answer)

    def at_once(*_: Any) -> NoReturn:
        # As `kill -9` would, which a run survives: an exception in the middle of a checkpoint makes
        # the libraries that write it complain in many words.
        print_message(f"stopped at once; {go_on}")
        os._exit(130)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    except Stopped as stopped:
        print_message(f"{stopped}; {go_on}")
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
