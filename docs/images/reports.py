# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures that are plots of reports: those of README.md, start.md and results.md.

    python docs/images/reports.py                         # all of synthetic tasks, in minutes
    python docs/images/reports.py results/toy-curves      # one of them
    python docs/images/reports.py results/adult-curves    # prints the commands for its runs
    python docs/images/reports.py results/adult-curves --runs runs

Runs of synthetic tasks are made anew, in a folder that is deleted afterwards. Those of the other
pictures take hours or need files from elsewhere, so this script does not make them: with `--runs`
it takes the plots from the folder in which their commands left them.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.drawing import save
from agnosticfl.report.plots import draw_plots
from agnosticfl.report.runs import load_runs

IMAGES = Path(__file__).parent
LONG = (
    "its runs take hours, or need files from elsewhere. For each METHOD (LABEL: its name, or"
    " afa-heldout) and seed S, as docs/results.md says, run these; then this with --runs runs:"
)


class Report(NamedTuple):
    """The runs of some pictures, all below the folder `runs`."""

    folder: str  # below it: of the report, or of the runs of `rows`
    commands: tuple[str, ...]
    quick: bool = False  # whether this script runs the commands
    rows: Mapping[str, str] = {}  # title -> its folder, where methods alone do not tell rows apart


class Picture(NamedTuple):
    """A plot of a report."""

    report: Report
    plot: str


def compared(task: str, folder: str, options: str = "", quick: bool = False) -> Report:
    """One comparison."""
    command = f"agnosticfl compare {task} {options} --out runs/{folder}"
    return Report(folder, (" ".join(command.split()),), quick)


def searched(task: str, *labels: str) -> Report:
    """Methods each at its own best setting; docs/results.md has the keys of each search."""
    parts = " ".join(f"runs/{task}/{label}/compare" for label in labels)
    tune, folder = f"runs/{task}/LABEL/tune", f"{task}/pictures"
    return Report(
        folder,
        (
            f"agnosticfl tune {task} --algorithms METHOD --seeds 2 --budget 12"
            f" --keys client_optimizer.learning_rate --out {tune}",
            f"agnosticfl compare {tune}/{task}.toml --algorithms METHOD --seeds 5"
            f" --out runs/{task}/LABEL/compare",
            f"agnosticfl report {parts} --out runs/{folder}",
        ),
    )


def smaller(task: str, lanes: int, rate: float) -> Report:
    """A smaller model on text, with the same local loss for every λ."""
    command = (
        f"agnosticfl run {task} --algorithm METHOD --seed S --rounds 800 --precision bf16"
        f" --set lanes={lanes} --set evaluation_every=50"
        " --set model.hidden=128 --set model.embedding=48"
        " --set algorithms.METHOD.normalisation=client"
        f" --set algorithms.METHOD.client_optimizer.learning_rate={rate}"
        f" --out runs/{task}-smaller/LABEL/seedS"
    )
    rows = {
        "Counts (FedAvg's shares)": "fedavg",
        "AFA": "afa",
        "AFA, held-out losses": "afa-heldout",  # with --set weights_follow=heldout
        "Constant λ": "constant",
    }
    return Report(f"{task}-smaller", (command,), rows=rows)


THREE = "--algorithms fedavg,constant,afa"
FIRST = compared("toy", "first", quick=True)
SYNTHETIC = {
    task: compared(task, task, f"{THREE} --seeds 5", quick=True)
    for task in ("toy", "synthetic-points", "synthetic-sentences", "synthetic-images")
}
# `afa-heldout` is AFA with --set weights_follow=heldout.
FASHION = searched(
    "fashion-mnist", "fedavg", "constant", "afa", "drfa", "aaggff", "cvar", "semi-vred", "afl"
)
ADULT = searched("adult", "fedavg", "constant", "afa", "drfa", "term", "qffl", "cvar", "q-fedavg")
ROTATED = searched("rotated-writers", "fedavg", "constant", "afa-heldout", "drfa")
WRITERS = compared("mnist-writers", "mnist-writers", f"{THREE} --precision tf32 --set lanes=5")
# AFA is on training losses or on held-out ones: the picture does not tell them apart.
BLOGS = Report(
    "blogs/pictures",
    (
        "agnosticfl tune blogs --algorithms METHOD --seeds 1 --looks 3 --budget 6 --rounds 100"
        " --set evaluation_every=10 --set clients_per_round=200 --set evaluation_clients=400"
        " --set lanes=100 --precision bf16 --keys client_optimizer.learning_rate=0.316,1.0,3.16"
        " --keys weight_rule.learning_rate=0.01,0.1 --out runs/blogs/LABEL/tune",
        "agnosticfl run runs/blogs/LABEL/tune/blogs.toml --algorithm METHOD --seed S --rounds 200"
        " --set clients_per_round=500 --set evaluation_clients=1000 --set evaluation_every=25"
        " --out runs/blogs/LABEL/test/seedS",
        "agnosticfl report runs/blogs/fedavg/test runs/blogs/afa/test runs/blogs/constant/test"
        " --out runs/blogs/pictures",
    ),
)
TEXT = {
    "stackexchange": smaller("stackexchange", 25, 3.16),
    "activ-es": smaller("activ-es", 50, 5.62),
}

PICTURES = {
    "toy-value": Picture(FIRST, "value"),
    "toy-weights": Picture(FIRST, "weights"),
    **{
        f"results/{task}-{plot}": Picture(report, plot)
        for task, report in {**SYNTHETIC, **TEXT, "mnist-writers": WRITERS}.items()
        for plot in ("curves", "weights")
    },
    **{
        f"results/{task}-{plot}": Picture(report, plot)
        for task, report in {"fashion-mnist": FASHION, "adult": ADULT}.items()
        for plot in ("curves", "pareto")
    },
    "results/rotated-writers-curves": Picture(ROTATED, "curves"),
    "results/blogs-curves": Picture(BLOGS, "curves"),
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    quick = [name for name, picture in PICTURES.items() if picture.report.quick]
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(PICTURES))
    parser.add_argument("--runs", type=Path, help="take plots from runs that are there")
    options = parser.parse_args(words)
    if unknown := [name for name in options.names if name not in PICTURES]:
        parser.error(f"there is no picture {unknown[0]}: there are {', '.join(PICTURES)}")
    by_runs: dict[str, list[str]] = {}
    for name in options.names or quick:
        by_runs.setdefault(PICTURES[name].report.folder, []).append(name)
    for names in by_runs.values():
        report = PICTURES[names[0]].report
        if options.runs is not None:
            take(names, options.runs)
        elif report.quick:
            with tempfile.TemporaryDirectory() as folder:
                run(report, Path(folder))
                take(names, Path(folder) / "runs")
        else:
            typer.echo("\n".join([f"{', '.join(names)}: {LONG}", *report.commands, ""]))


def run(report: Report, folder: Path) -> None:
    """Makes the runs of a report in `folder`."""
    for command in report.commands:
        program, *rest = shlex.split(command)
        subprocess.run([sys.executable, "-m", program, *rest], cwd=folder, check=True)


def take(names: Sequence[str], runs: Path) -> None:
    """Puts pictures of one report where the pages have them."""
    for name in names:
        report, plot = PICTURES[name]
        folder = runs / report.folder
        if report.rows:
            rows = {title: folder / row for title, row in report.rows.items()}
            draw(rows, plot, IMAGES / f"{name}.png")
        else:
            shutil.copyfile(folder / "plots" / f"{plot}.png", IMAGES / f"{name}.png")
        typer.echo(f"{name}.png")


def draw(rows: Mapping[str, Path], plot: str, file: Path) -> None:
    """Draws a plot of rows that have these titles."""
    (wanted,) = [each for each in draw_plots(titled(rows)) if each.name == plot]
    with tempfile.TemporaryDirectory() as folder:
        save(wanted, Path(folder))
        shutil.copyfile(Path(folder) / f"{plot}.png", file)


def titled(rows: Mapping[str, Path]) -> Comparison:
    """A comparison of rows, each of the runs of one method, that have these titles."""
    parts = {title: compare_runs(load_runs([folder])) for title, folder in rows.items()}
    first = next(iter(parts.values()))
    return first._replace(rows=[p.rows[0]._replace(title=title) for title, p in parts.items()])


if __name__ == "__main__":
    main()
