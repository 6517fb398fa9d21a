# SPDX-License-Identifier: Apache-2.0
"""Why some rounds take longer than others: each one's time beside what could explain it.

    python benchmarks/swing.py [--task emnist] [--precision bf16] [--rounds 150] [--json OUT]
        [--engine lanes:10] [--way …]

Ways to play the same rounds, each in a process of its own, which tell causes apart:

    usual    as a run plays them, one under way while the one before it is read
    serial   one after the other: what is gone with it was the host's
    same     one cohort for ever, at one address: what is gone with it was its preparation
    copied   loops read copies of what comes in and results are copied out, so that the addresses
             that they see are those of the program's own memory: a card records a loop anew when
             an address is another one
    asked    loops that ask the host after each step: there is nothing to record

Of each it says the spread of the times, how they follow the number of a round's steps, and how the
times of rounds differ whose buffers lie where they lay in a round before, or do not.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import rounds as timing
from jax import Array
from workloads import make

from agnosticfl.core.contribution import Broadcast, SumOverClients
from agnosticfl.engines import base, lanes
from agnosticfl.engines.lanes import LaneCohort
from agnosticfl.methods.base import Algorithm
from agnosticfl.runs.cache import cache_folder, remember_compilations

WAYS = ("usual", "serial", "same", "copied", "asked")
WARM = 10  # rounds that do not count


def main() -> None:
    options = _options()
    if options.inner:
        print(json.dumps(measured(options)))  # noqa: T201
        return
    found: list[dict[str, Any]] = []
    for way in options.way:
        words = [sys.executable, __file__, *sys.argv[1:], "--inner", way]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps({k: v for k, v in found[-1].items() if k != "ms"}), flush=True)  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One way: the times of its rounds, and what goes with them."""
    remember_compilations(cache_folder())
    way: str = options.inner
    with contextlib.ExitStack() as stack:
        for name, other in _changed(way).items():
            stack.enter_context(mock.patch.object(lanes, name, other))
        workload = make(options.task, 0)
        model = timing.MODELS[options.task]()
        algorithm = timing.make_algorithm(workload, model, options.engine, options.precision)
        seen: set[tuple[int, ...]] = set()
        ms: list[float] = []
        known: list[bool] = []
        for seconds, addresses in _played(algorithm, options.rounds + WARM, way):
            ms.append(1000 * seconds)
            known.append(addresses in seen)
            seen.add(addresses)
    steps = [int(algorithm.cohort(t).layout.steps) for t in range(1, len(ms) + 1)]
    late, ordered = slice(WARM, None), sorted(ms[WARM:])
    there = {True: "where_they_were", False: "somewhere_new"}
    return {
        "way": way,
        "task": options.task,
        "precision": options.precision,
        "engine": options.engine,
        "median": statistics.median(ordered),
        "least": ordered[0],
        "tenth": ordered[len(ordered) // 10],
        "nine_tenths": ordered[9 * len(ordered) // 10],
        "most": ordered[-1],
        **_by_steps(steps[late], ms[late]),
        **{
            f"median_{name}": statistics.median(own)
            for was, name in there.items()
            if (own := [x for x, k in zip(ms[late], known[late], strict=True) if k is was])
        },
        "device": jax.devices()[0].device_kind,
        "ms": ms,
    }


def _played(algorithm: Algorithm, rounds: int, way: str) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Seconds of each round, and where its cohort, the model before and the one after it lie."""
    state, first = algorithm.init(), algorithm.cohort(1)
    finished, under_way = time.perf_counter(), None
    for t in range(1, rounds + 1):
        cohort = first if way == "same" else algorithm.cohort(t)
        after, info = under_way or algorithm.round(state, cohort)
        if way in ("usual", "copied", "asked"):
            under_way = algorithm.round(after, algorithm.cohort(t + 1))
        jax.device_get(info)
        now = time.perf_counter()
        yield now - finished, tuple(map(_address, (cohort, state.params, after.params)))
        finished, state = now, after


def _address(tree: Any) -> int:
    return jax.tree.leaves(tree)[-1].unsafe_buffer_pointer()


def _changed(way: str) -> dict[str, Any]:
    """What of the engine is another one."""
    if way == "asked":
        return {"compiled": jax.jit}
    if way == "copied":
        return {"compiled_sum": lambda *parts: base.compiled(_copied(lanes.sum_over(*parts)))}
    return {}


def _copied(sum_over_clients: SumOverClients[LaneCohort]) -> SumOverClients[LaneCohort]:
    def total(sent: Broadcast, packed: LaneCohort) -> Any:
        copy = _copy(packed.layout.steps >= 0)  # true, which the compiler does not know
        sent, cohort, layout = copy((sent, packed.cohort, packed.layout))
        return copy(sum_over_clients(sent, LaneCohort(packed.pool, cohort, layout)))

    return total


def _copy(always: Array) -> Callable[[Any], Any]:
    def one(leaf: Array) -> Array:
        return jnp.where(always, leaf, jnp.zeros_like(leaf))

    return lambda tree: jax.tree.map(one, tree)


def _by_steps(steps: list[int], ms: list[float]) -> dict[str, float]:
    """How much of a round's time its steps explain."""
    if len(set(steps)) == 1:
        return {}
    each, beside = statistics.linear_regression(steps, ms)
    return {
        "correlation_with_steps": statistics.correlation(steps, ms),
        "ms_per_step": each,
        "ms_beside_them": beside,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="emnist", choices=["emnist", "stackoverflow"])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--engine", default="lanes", metavar="lanes[:LANES]")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--way", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--json")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
