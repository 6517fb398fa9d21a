# SPDX-License-Identifier: Apache-2.0
"""Times Flower's own simulator, its clients on Ray, on the arrays of workloads.py.

    python benchmarks/peer_flower.py --task emnist --rounds 8 --json OUT

For an environment with this package and `flwr[simulation]`; `rounds.py --peer PYTHON
benchmarks/peer_flower.py` calls it so. A client does what a client of AFA does, with the package's
model and one compiled call a batch: a pass for its losses, then its local steps. The server adds up
what they send. So what differs from ours is who moves arrays about, and when.
"""

import argparse
import functools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for Ray's processes

import jax
import jax.numpy as jnp
import numpy as np
from bare import cut, descent, federated
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from workloads import make

from agnosticfl.models import cnn

SKIPPED = 3  # rounds, in which processes start and compile


def main() -> None:
    options = _options()
    seconds: list[float] = []
    workload = make(options.task, options.seed)
    run_simulation(
        server_app=server(workload, options.rounds, seconds),
        client_app=client(options.task, options.seed),
        num_supernodes=workload.clients_per_round,
        backend_config={"client_resources": {"num_cpus": 1}},
    )
    found = {"median_s_per_round": statistics.median(seconds[SKIPPED:]), "seconds": seconds}
    Path(options.json).write_text(json.dumps(found) + "\n", encoding="utf-8")


def server(workload: Any, rounds: int, seconds: list[float]) -> ServerApp:
    """Sends w to the clients of each round and takes a step along the mean of what they send."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        del context
        start = cnn().init(jax.random.key(workload.seed))
        w = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
        while len(list(grid.get_node_ids())) < workload.clients_per_round:
            time.sleep(0.1)
        nodes = list(grid.get_node_ids())
        for t in range(1, rounds + 1):
            begun = time.perf_counter()
            record = ArrayRecord(w)
            asked = [
                RecordDict({"w": record, "who": ConfigRecord({"client": int(k), "round": t})})
                for k in workload.round_clients(t)
            ]
            pairs = zip(asked, nodes, strict=True)
            replies = grid.send_and_receive([Message(a, node, "train") for a, node in pairs])
            contents = [reply.content for reply in replies]
            weights = [float(content["sums"]["weight"]) for content in contents]
            moved = [content["w"].to_numpy_ndarrays() for content in contents]
            w = [np.average(leaves, axis=0, weights=weights) for leaves in zip(*moved, strict=True)]
            seconds.append(time.perf_counter() - begun)

    return app


def client(task: str, seed: int) -> ClientApp:
    """Measures and trains on the data of whom it is asked to be."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        del context
        from peer_flower import tools  # by name: what is kept between calls cannot be sent to Ray

        workload, data, structure, measure, step = tools(task, seed)
        who = message.content["who"]
        k, size = int(who["client"]), workload.hparams["batch_size"]
        w = jax.tree.unflatten(structure, message.content["w"].to_numpy_ndarrays())
        rows = np.arange(data.offsets[k], data.offsets[k + 1])
        batches = cut(data, rows, size)
        loss = sum(measure(w, batch) for batch in batches)
        key = jax.random.key(int(who["round"]))
        for number, batch in enumerate(batches):
            w = step(w, batch, jax.random.fold_in(key, number))
        sums = MetricRecord({"weight": float(len(rows)), "loss": float(loss)})
        record = ArrayRecord([np.asarray(leaf) for leaf in jax.tree.leaves(w)])
        return Message(RecordDict({"w": record, "sums": sums}), reply_to=message)

    return app


@functools.cache
def tools(task: str, seed: int) -> Any:
    """Made once in each of Ray's processes."""
    workload, model = make(task, seed), cnn()
    structure = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    rate = workload.hparams["client_lr"]

    @jax.jit
    def measure(w: Any, batch: Any) -> Any:
        return jnp.sum(model.per_example_loss(w, batch, None))

    step = jax.jit(functools.partial(descent, model, rate))
    return workload, federated(workload), structure, measure, step


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="emnist", choices=["emnist"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
