# SPDX-License-Identifier: Apache-2.0
"""Seconds a round, engine beside engine and beside a peer, on the same arrays and cohorts.

    python benchmarks/rounds.py WORKLOADS.py --task toy emnist --engine auto lanes:5 --rounds 10
        [--json OUT] [--peer-python ENV/bin/python --peer-script PEER.py]

WORKLOADS.py has `make(task, seed)` with clients' arrays, hyper-parameters and `round_clients(t)`.
The peer's script runs in an environment of its own, is called with `--task --rounds --json`, and
writes `median_s_per_round`. An engine can carry options: `lanes:25` has 25 lanes, `lanes:5/stacked`
takes another form of the model.
"""

import argparse
import functools
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import models
import numpy as np
import optax

from agnosticfl import agnostic_fedavg, exponentiated_gradient, from_arrays
from agnosticfl.algorithm import Algorithm
from agnosticfl.data import FederatedData
from agnosticfl.engine import ENGINES
from agnosticfl.engine.seam import EngineBuilder
from agnosticfl.model import Model
from agnosticfl.models import cnn, lstm, point

MODELS: dict[str, dict[str, Callable[[], Model]]] = {
    "toy": {"": point},
    "emnist": {"": cnn},
    "stackoverflow": {
        "": lstm,
        "unrolled": lambda: models.lstm(lambda wh, z: models.time_loop(wh, z, 20)),
        "stacked": lambda: models.lstm(models.stacked_time_loop()),
        "stacked-unrolled": lambda: models.lstm(models.stacked_time_loop(20)),
    },
}


def main() -> None:
    options = _options()
    workloads = _load(options.workloads)
    results: list[dict[str, Any]] = []
    for task in options.task:
        workload = workloads.make(task, options.seed)
        for engine in options.engine:
            results.append(measure(workload, engine, options.rounds))
            print(json.dumps(results[-1]), flush=True)  # noqa: T201
        if options.peer_script:
            results.append(peer(options, task))
    print(table(results))  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def measure(workload: Any, engine: str, rounds: int) -> dict[str, Any]:
    """Median seconds of `rounds` rounds (of as many blocks, where the engine has blocks)."""
    name, _, variant = engine.partition("/")
    algorithm = make_algorithm(workload, MODELS[workload.name][variant](), name)
    seconds = timed(algorithm)
    first = next(seconds)
    next(seconds)
    each = sorted(next(seconds) for _ in range(rounds))
    return {
        "task": workload.name,
        "engine": engine,
        "median_s_per_round": statistics.median(each),
        "fastest_s": each[0],
        "slowest_s": each[-1],
        "rounds_timed": rounds,
        "first_call_s": first,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }


def timed(algorithm: Algorithm) -> Iterator[float]:
    """Seconds a round, for ever. The first one has the compilation in it."""
    state = algorithm.init()
    while True:
        started = time.perf_counter()
        if algorithm.block is None:
            state, _ = algorithm.round(state, algorithm.cohort(int(state.round) + 1))
            jax.block_until_ready(state)
            yield time.perf_counter() - started
        else:
            states, _ = jax.device_get(algorithm.block(state))
            state = jax.tree.map(lambda leaf: np.asarray(leaf[-1]), states)
            yield (time.perf_counter() - started) / len(states.round)


def make_algorithm(workload: Any, model: Model, engine: str) -> Algorithm:
    """AFA with the workload's hyper-parameters and cohorts."""
    h = workload.hparams
    adam = functools.partial(optax.adam, b1=h.get("server_b1"), b2=h.get("server_b2"))
    server = {"sgd": optax.sgd, "adam": functools.partial(adam, eps=h.get("server_eps"))}
    name, _, lanes = engine.partition(":")
    build: EngineBuilder = ENGINES[name]
    if lanes:
        build = functools.partial(build, lanes=int(lanes))
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
        # The workload's cohorts in place of ours: those of the peer.
        engine=lambda work, data, _, seed: build(work, data, workload.round_clients, seed),
    )


def federated(workload: Any) -> FederatedData:
    """The workload's arrays, as the package's models take them."""
    names = [name for name in workload.clients[0] if name != "domain_id"]
    sizes = [len(client["domain_id"]) for client in workload.clients]
    arrays = {name: np.concatenate([c[name] for c in workload.clients]) for name in names}
    if workload.name == "stackoverflow":
        arrays = {"tokens": np.concatenate([arrays["x"][:, :1], arrays["y"]], axis=1)}
    if workload.name == "emnist":
        arrays["x"] = arrays["x"][..., 0]
    return from_arrays(
        arrays,
        clients=np.repeat(np.arange(len(sizes)), sizes),
        domains=np.concatenate([client["domain_id"] for client in workload.clients]),
        domain_names=[str(i) for i in range(workload.num_domains)],
    )


def peer(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """What the peer's own script measures, in the peer's own environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peer.json"
        command = [options.peer_python, options.peer_script, "--task", task]
        command += ["--rounds", str(options.rounds + 3), "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(out.read_text(encoding="utf-8"))
    return {**found, "task": task, "engine": f"peer {Path(options.peer_script).stem}"}


def table(results: list[dict[str, Any]]) -> str:
    """Markdown, with the ratio to the peer where there is one."""
    lines = ["| task | engine | ms a round | × peer |", "|---|---|---:|---:|"]
    peers = {r["task"]: r["median_s_per_round"] for r in results if "peer" in r["engine"]}
    for r in results:
        seconds = r["median_s_per_round"]
        ratio = f"{peers[r['task']] / seconds:.2f}" if r["task"] in peers else ""
        lines.append(f"| {r['task']} | {r['engine']} | {1000 * seconds:.4g} | {ratio} |")
    return "\n".join(lines)


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("workloads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workloads"] = module  # a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", help="a file with make(task, seed)")
    parser.add_argument("--task", nargs="+", default=["toy"], choices=list(MODELS))
    parser.add_argument("--engine", nargs="+", default=["auto"], metavar="NAME[:LANES][/MODEL]")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--peer-python", default="python")
    parser.add_argument("--peer-script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
