# SPDX-License-Identifier: Apache-2.0
"""Synthetic clients in the sizes of the paper's three experiments, the same for the same seed.

To time a peer on the same arrays, give `rounds.py` the peer's own file of workloads instead.
"""

from typing import Any, NamedTuple

import numpy as np

Client = dict[str, np.ndarray]


class Workload(NamedTuple):
    """What a benchmark runs on."""

    name: str
    seed: int
    num_domains: int
    clients_per_round: int
    clients: list[Client]  # arrays with a row an example, among them `domain_id`
    hparams: dict[str, Any]

    def round_clients(self, t: int) -> np.ndarray:
        """Who takes part in round t."""
        rng = np.random.default_rng([self.seed, t])
        return rng.permutation(len(self.clients))[: self.clients_per_round]


def make(task: str, seed: int) -> Workload:
    """The workload called `task`."""
    return {"toy": toy, "emnist": emnist, "stackoverflow": stackoverflow}[task](seed)


def toy(seed: int) -> Workload:
    """1000 points of 5 domains on 50 clients, all of whom take part."""
    rng = np.random.default_rng(seed)
    domain = rng.integers(5, size=(50, 20)).astype(np.int32)
    x = (np.linspace(-1, 1, 5)[domain] + 0.1 * rng.normal(size=domain.shape)).astype(np.float32)
    clients = [{"x": own, "domain_id": ids} for own, ids in zip(x, domain, strict=True)]
    return Workload("toy", seed, 5, 50, clients, _hparams(10, 0.1, 0.01, "sgd", 1.0))


def emnist(seed: int) -> Workload:
    """200 writers of about 190 images, a fifth of them in the first domain; 10 take part."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(np.log(186), 0.33, 200), 20, 400).astype(int)
    clients = [
        {
            "x": rng.random((n, 28, 28, 1), np.float32),
            "y": rng.integers(62, size=n).astype(np.int32),
            "domain_id": np.full(n, rng.random() > 0.2, np.int32),
        }
        for n in sizes
    ]
    return Workload("emnist", seed, 2, 10, clients, _hparams(20, 10**-1.5, 0.01, "adam", 10**-2.5))


def stackoverflow(seed: int) -> Workload:
    """200 users of about 100 sentences of both domains; 50 take part."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.normal(104, 25, 200), 16, 128).astype(int)
    clients: list[Client] = []
    for n in sizes:
        words = rng.integers(3, 10_003, (n, 20)).astype(np.int32)
        words[np.arange(20) >= rng.integers(5, 21, (n, 1))] = 0
        first = np.ones((n, 1), np.int32)
        domain = rng.integers(2, size=n).astype(np.int32)
        x = np.concatenate([first, words[:, :-1]], axis=1)
        clients.append({"x": x, "y": words, "domain_id": domain})
    hparams = _hparams(16, 10**-0.5, 0.005, "adam", 0.01)
    return Workload("stackoverflow", seed, 2, 50, clients, hparams)


def _hparams(batch: int, rate: float, domain_rate: float, server: str, server_rate: float) -> Any:
    return {
        "batch_size": batch,
        "num_epochs": 1,
        "client_lr": rate,
        "domain_lr": domain_rate,
        "domain_window_size": 1,
        "server_optimizer": server,
        "server_lr": server_rate,
        "server_b1": 0.9,
        "server_b2": 0.999,
        "server_eps": 1e-4,
    }
