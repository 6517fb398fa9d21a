# SPDX-License-Identifier: Apache-2.0
"""A search on held-out clients: every combination of some settings, several runs side by side.

    python benchmarks/search.py TASK --out FOLDER --algorithm fedavg --jobs 4
        --grid client_optimizer.learning_rate=0.1,0.316,1 [KEY=VALUE,VALUE …] [--set KEY=VALUE …]

Prints a table, best first, of the worst domain's metric on all held-out clients at the end of a
run. The test clients' results are in the run folders, and nothing here reads them.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from agnosticfl.core.evaluate import Worst, worst_domain
from agnosticfl.core.metrics import reading
from agnosticfl.errors import check
from agnosticfl.runs.resolve import resolve


class Result(NamedTuple):
    """What a combination of settings came to."""

    settings: tuple[str, ...]
    worst: Worst | None  # None if the run diverged or failed


def main() -> None:
    options = _options()
    keys, values = zip(*(part.split("=", 1) for part in options.grid), strict=True)
    points = itertools.product(*(each.split(",") for each in values))
    named = [tuple(f"{k}={v}" for k, v in zip(keys, point, strict=True)) for point in points]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda settings: measure(options, settings), named))
    print(table(options, results))  # noqa: T201


def measure(options: argparse.Namespace, settings: tuple[str, ...]) -> Result:
    """One run, in a folder of its own; one that is there already is not made again."""
    sets = [*options.set, *settings]
    name = "-".join([options.algorithm, *sets, f"seed{options.seed}"]).replace("=", "")
    folder = Path(options.out) / name
    command = [sys.executable, "-m", "agnosticfl", "run", options.task, "--resume"]
    command += ["--algorithm", options.algorithm, "--seed", str(options.seed), "--out", str(folder)]
    command += [part for setting in sets for part in ("--set", setting)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    summary = folder / "summary.json"
    if not summary.exists():
        return Result(settings, None)
    found = json.loads(summary.read_text(encoding="utf-8"))
    check("heldout" in found, f"the data of {options.task} has no split 'heldout' to search on")
    worst = worst_domain(found["heldout"], metric_of(options))
    return Result(settings, worst if math.isfinite(worst.value) else None)


def metric_of(options: argparse.Namespace) -> str:
    """The metric that tells which domain is served worst."""
    return resolve(options.task, options.algorithm, None, options.seed, None, options.set).metric


def table(options: argparse.Namespace, results: list[Result]) -> str:
    """Markdown, best first."""
    metric = metric_of(options)
    sign = -1 if reading(metric).higher_is_better else 1
    results.sort(key=lambda r: sign * r.worst.value if r.worst else math.inf)
    lines = [
        f"| {options.algorithm} | worst domain | {metric}, held out | gap |",
        "|---|---|---:|---:|",
    ]
    for settings, worst in results:
        found = (
            f"{worst.domain} | {worst.value:.4g} | {worst.gap:.4g}" if worst else "– | diverged |"
        )
        lines.append(f"| {', '.join(settings)} | {found} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--out", required=True)
    parser.add_argument("--algorithm", default="afa")
    parser.add_argument("--grid", nargs="+", required=True, metavar="KEY=VALUE,…")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
