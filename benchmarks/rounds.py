# SPDX-License-Identifier: Apache-2.0
"""Seconds per round, engine beside engine, beside the bare loop and peers, on the same arrays.

    python benchmarks/rounds.py WORKLOADS.py --task toy emnist --engine auto lanes:5 --rounds 10
        [--repeats 3] [--bare] [--precision tf32 bf16] [--trace FOLDER] [--json OUT]
        [--peer ENV/bin/python PEER.py]...

WORKLOADS.py has `make(task, seed)` with clients' arrays, hyper-parameters and `round_clients(t)`.
A peer's script runs in an environment of its own, is called with `--task --rounds --json`, and
writes `median_s_per_round`. All take turns, `repeats` times, so that the machine's mood hits them
alike. The engine `lanes:25` has 25 lanes. `--bare` is the same forward passes and gradient steps
called one by one with nothing around them. `--trace` writes a profile of two rounds and sums it up.
"""

import argparse
import collections
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bare
import costs
import jax
import optax
from bare import federated

from agnosticfl import agnostic_fedavg, exponentiated_gradient
from agnosticfl.core.model import Model
from agnosticfl.core.precision import PRECISIONS, model_in_precision
from agnosticfl.engines.base import EngineBuilder
from agnosticfl.methods.base import Algorithm
from agnosticfl.models import cnn, lstm, point
from agnosticfl.registry import ENGINES
from agnosticfl.runs.playing import play

MODELS: dict[str, Callable[[], Model]] = {"toy": point, "emnist": cnn, "stackoverflow": lstm}


def main() -> None:
    options = _options()
    workloads = load(options.workloads)
    results: list[dict[str, Any]] = []
    for task in options.task:
        results += measure(workloads.make(task, options.seed), options)
        print(json.dumps(results[-1]), flush=True)  # noqa: T201
    print(table(results))  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def measure(workload: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Median seconds per round of every engine, the bare loop and every peer, in turns."""
    clocks = {
        f"{engine} {precision}": Clock(workload, engine, precision, options)
        for engine in options.engine
        for precision in options.precision
    }
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    loads: list[float] = []
    for _ in range(options.repeats):
        # One after the other: an accelerator records its loops anew where another program ran.
        for name, clock in clocks.items():
            each = [(name, clock.seconds)]
            if clock.bare is not None:
                each.append((f"bare loop of {name}", clock.bare))
            for name_of_row, timer in each:
                next(timer)
                seconds[name_of_row] += [next(timer) for _ in range(options.rounds)]
        for python, script in options.peer:
            found = peer(python, script, workload.name, options.rounds)
            if found is not None:
                seconds[f"peer {Path(script).stem}"].append(found)
        loads.append(os.getloadavg()[0])
    return [
        {
            "task": workload.name,
            "engine": name,
            "median_s_per_round": statistics.median(each),
            "fastest_s": min(each),
            "slowest_s": max(each),
            "timed": len(each),
            "load": max(loads),
            "jax": jax.__version__,
            "device": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
            **(clocks[name].extras(statistics.median(each)) if name in clocks else {}),
        }
        for name, each in seconds.items()
    ]


class Clock:
    """One engine on one workload: `seconds` gives those of one round after another."""

    def __init__(self, workload: Any, engine: str, precision: str, options: argparse.Namespace):
        self.workload, self.trace = workload, options.trace
        self.model = MODELS[workload.name]()
        self.algorithm = make_algorithm(workload, self.model, engine, precision)
        self.seconds = timed(self.algorithm)
        self.first_call_s = next(self.seconds)
        next(self.seconds)
        self.bare = None
        if options.bare:
            precise = model_in_precision(self.model, precision)
            self.bare = bare.timed(workload, precise)
            next(self.bare)

    def extras(self, seconds: float) -> dict[str, Any]:
        """What a round costs by its formulas, the rates this means, and where the time goes."""
        needed = bare.cost_of_round(self.workload, self.model)
        memory = jax.local_devices()[0].memory_stats() or {}
        found: dict[str, Any] = {
            "first_call_s": self.first_call_s,
            "settings": dict(self.algorithm.choices),
            "tflop_per_round": needed.flops / 1e12,
            "tflop_per_s": needed.flops / seconds / 1e12,
            "gb_per_round": needed.bytes / 1e9,
            "gb_per_s": needed.bytes / seconds / 1e9,
            "peak_device_mib": memory.get("peak_bytes_in_use", 0) / 2**20,
        }
        if self.trace:
            with jax.profiler.trace(self.trace):
                traced = next(self.seconds) + next(self.seconds)
            found["profile"] = {"wall_s": traced, **costs.time_by_operation(Path(self.trace))}
        return found


def timed(algorithm: Algorithm) -> Iterator[float]:
    """Seconds per round, for ever, as a run plays them: of each round, or of a block of rounds.

    The first one has the compilation in it.
    """
    before = None
    for _, _, seconds in play(algorithm, algorithm.init(), range(1, sys.maxsize)):
        if algorithm.block is None or seconds != before:
            yield seconds
        before = seconds


def make_algorithm(
    workload: Any, model: Model, engine: str, precision: str = "float32", **choices: Any
) -> Algorithm:
    """AFA with the workload's hyper-parameters and cohorts."""
    h = workload.hparams
    adam = functools.partial(optax.adam, b1=h.get("server_b1"), b2=h.get("server_b2"))
    server = {"sgd": optax.sgd, "adam": functools.partial(adam, eps=h.get("server_eps"))}
    name, _, lanes = engine.partition(":")
    if lanes:
        choices["lanes"] = int(lanes)
    build: EngineBuilder = functools.partial(ENGINES.get(name), **choices)
    return agnostic_fedavg(
        model,
        federated(workload),
        clients_per_round=workload.clients_per_round,
        batch_size=h["batch_size"],
        epochs=h["num_epochs"],
        client_optimizer=optax.sgd(h["client_lr"]),
        server_optimizer=server[h["server_optimizer"]](h["server_lr"]),
        weight_rule=exponentiated_gradient(h["domain_lr"]),
        window_size=h["domain_window_size"],
        seed=workload.seed,
        precision=precision,
        # The workload's cohorts in place of ours: those of the peer.
        engine=lambda work, data, _, seed: build(work, data, workload.round_clients, seed),
    )


def peer(python: str, script: str, task: str, rounds: int) -> float | None:
    """What the peer's own script measures, in the peer's own environment; None if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peer.json"
        command = [python, script, "--task", task, "--rounds", str(rounds + 3), "--json", str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.stderr.write(f"{script} has no result for {task}: {done.stderr[-300:]}\n")
            return None
        return json.loads(out.read_text(encoding="utf-8"))["median_s_per_round"]


def table(results: list[dict[str, Any]]) -> str:
    """Markdown, with the ratio of everybody else's seconds to those of the first engine."""
    lines = [
        "| task | what | ms per round | × ours | TFLOP/s | GB/s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    ours: dict[str, float] = {}
    for r in results:
        seconds = r["median_s_per_round"]
        ratio = seconds / ours.setdefault(r["task"], seconds)
        rates = [f"{r[k]:.3g}" if k in r else "" for k in ("tflop_per_s", "gb_per_s")]
        cells = [r["task"], r["engine"], f"{1000 * seconds:.4g}", f"{ratio:.3g}", *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def load(path: str) -> Any:
    """The module at a path."""
    spec = importlib.util.spec_from_file_location("workloads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workloads"] = module  # a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", help="a file with make(task, seed)")
    parser.add_argument("--task", nargs="+", default=["toy"], choices=list(MODELS))
    parser.add_argument("--engine", nargs="+", default=["auto"], metavar="NAME[:LANES]")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--repeats", type=int, default=1, help="turns that all of them take")
    parser.add_argument("--bare", action="store_true", help="time the bare loop too")
    parser.add_argument("--precision", nargs="+", default=["float32"], choices=list(PRECISIONS))
    parser.add_argument("--trace", help="folder for a profile of two rounds")
    parser.add_argument(
        "--peer", nargs=2, action="append", default=[], metavar=("PYTHON", "SCRIPT")
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
