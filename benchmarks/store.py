# SPDX-License-Identifier: Apache-2.0
"""Builds, opens and reads a big and a small store of synthetic sentences, and says what it costs.

    python benchmarks/store.py --folder /some/disc [--clients 1500000] [--json figures.json]

Every step runs in a process of its own, so that its peak memory is its own. Reading is timed on
cohorts of 500 from the system's page cache, the two stores in turn, since the machine's mood
changes. Before each cohort 64 MiB of other memory are written, as training would do: otherwise the
small store would be read from the processor's cache, and the big one never.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from agnosticfl import agnostic_fedavg, from_functions
from agnosticfl.core import tree
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.sampling import Sampler, uniform
from agnosticfl.core.work import ClientWork
from agnosticfl.data.loaders.synthetic import load
from agnosticfl.data.store.reader import open_store
from agnosticfl.data.store.writer import write_store
from agnosticfl.engines.helpers import feed, plan
from agnosticfl.engines.helpers.plan import Planner

COHORT, ROUNDS, LANES, MIB = 500, 300, 25, 2**20
# One number, so that what is measured is the data's way.
MODEL = from_functions(
    lambda _: jnp.zeros(()),
    lambda w, examples: jnp.square(examples["tokens"].astype(jnp.float32).mean(1) - w),
)
WORK = ClientWork(MODEL, optax.sgd(0.1), num_domains=2, batch_size=20)


def build(path: Path, clients: int) -> dict[str, float]:
    start = time.perf_counter()
    source = load(kind="sentences", clients=clients, examples=20, test_fraction=0.0)
    write_store(source, path)
    return {
        "clients": clients,
        "sentences": source.total or 0,
        "build_s": time.perf_counter() - start,
        "build_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disc_mib": sum(file.stat().st_size for file in path.rglob("*.arrow")) / MIB,
    }


def opening(path: Path) -> dict[str, float]:
    start = time.perf_counter()
    open_store(path)
    return {"open_ms": 1000 * (time.perf_counter() - start)}


def copy_cohort(data: FederatedData, sample: Sampler, t: int) -> None:
    """Draws a cohort and copies its examples out of the store, in the order of the store."""
    clients = sample(t)
    first, sizes = data.offsets[clients], data.sizes_of(clients)
    rows = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    for column in (data.domain, *data.examples.values()):
        column[rows]


def packed_cohort(planner: Planner, t: int) -> None:
    """A cohort as an engine reads it: drawn, shuffled, gathered, packed, and on the device."""
    cohorts = plan.plans(planner, range(t, t + 1))
    layout = plan.layouts(planner, cohorts, LANES)
    examples = feed.of_cohort(planner.data, tree.row(cohorts, 0))
    jax.block_until_ready(jax.device_put((examples, layout)))


def reading(paths: list[Path]) -> list[dict[str, float]]:
    """Median milliseconds to draw and copy a cohort, the first time its pages are touched and
    again, and to hand it to an engine."""
    stores = [open_store(path).splits["train"] for path in paths]
    samplers = [uniform(data.num_clients, COHORT, seed=1) for data in stores]
    planners = [plan.make_planner(WORK, d, s, 1) for d, s in zip(stores, samplers, strict=True)]
    copies = [partial(copy_cohort, d, s) for d, s in zip(stores, samplers, strict=True)]
    packs = [partial(packed_cohort, planner) for planner in planners]
    figures: list[dict[str, float]] = [{} for _ in stores]
    for name, reads in (("first_copy_ms", copies), ("copy_ms", copies), ("engine_ms", packs)):
        for figure, times in zip(figures, _times(reads), strict=True):
            figure[name] = statistics.median(times)
    return figures


def _times(reads: list[Callable[[int], None]]) -> list[list[float]]:
    """Milliseconds of each round, for each store in turn."""
    other = np.zeros(64 * MIB, np.uint8)
    times: list[list[float]] = [[] for _ in reads]
    for t in range(1, ROUNDS + 1):
        for read, measured in zip(reads, times, strict=True):
            other += 1
            start = time.perf_counter()
            read(t)
            measured.append(1000 * (time.perf_counter() - start))
    return times


def training(path: Path) -> dict[str, float]:
    """Memory of a process that trains: its own, and the mapped pages it holds, at their largest.

    Pages are given back after each round, as `agnosticfl run` does. The cohorts are read from the
    store, as they are when a store is too large for the device.
    """
    feed.HOST_LIMIT = 0
    store = open_store(path)
    algorithm = agnostic_fedavg(
        MODEL,
        store.splits["train"],
        clients_per_round=COHORT,
        batch_size=20,
        client_optimizer=optax.sgd(0.1),
    )
    state = algorithm.init()
    own, pages = 0.0, 0.0
    for t in range(1, ROUNDS + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
        jax.block_until_ready(info)
        own, pages = max(own, _status("RssAnon")), max(pages, _status("RssFile"))
        store.release()
    return {"own_mib": own, "pages_mib": pages}


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where there is room for the stores")
    parser.add_argument("--clients", type=int, default=1_500_000)
    parser.add_argument("--small", type=int, default=15_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        paths = [folder / "small", folder / "big"]
        figures = [
            apart(build, path, clients)
            for path, clients in zip(paths, (options.small, options.clients), strict=True)
        ]
        for path, figure, read in zip(paths, figures, apart(reading, paths), strict=True):
            figure |= apart(opening, path) | read
            figure |= apart(training, path)
    finally:
        shutil.rmtree(folder)
    table = Table("", "small", "big")
    for name in figures[0]:
        table.add_row(name, *(f"{figure[name]:,.1f}" for figure in figures))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
