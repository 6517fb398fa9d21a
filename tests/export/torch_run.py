# SPDX-License-Identifier: Apache-2.0
"""A run whose clients train with PyTorch, without a network between them and the server."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.model import Model
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork
from agnosticfl.data.collect import collect
from agnosticfl.data.loaders import synthetic
from agnosticfl.deploy.node.contribute import Call
from agnosticfl.deploy.node.examples import one_client
from agnosticfl.deploy.node.pytorch import torch_client, torch_model
from agnosticfl.engines.base import Engine, as_it_is
from agnosticfl.errors import require
from agnosticfl.runs.build import Built, assemble
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import GIVEN, resolve
from agnosticfl.runs.run import run


def torch_federation(folder: Path) -> tuple[Splits, Model, Any]:
    """Trains for a few rounds in `folder`; gives the data, the server's model and the module."""
    torch = require("torch", "this test", "torch")

    def create() -> Any:
        return torch.nn.Linear(16, 10)

    def loss(module: Any, examples: Any) -> Any:
        logits = module(examples["x"])
        return torch.nn.functional.cross_entropy(logits, examples["y"].long(), reduction="none")

    def forward(module: Any, examples: Any) -> Any:
        return module(examples["x"])

    model = torch_model(create, loss, forward=forward, metrics=["accuracy"])
    parts = collect(synthetic.load(clients=12, examples=10, test_fraction=0.3))
    data = Splits(parts["train"], parts["test"])
    client = torch_client(create, loss)

    def engine(work: ClientWork, own: FederatedData, sampler: Sampler, seed: int) -> Engine[Any]:
        del work

        def call(sent: Broadcast, t: int, k: int) -> Any:
            first, last = int(own.offsets[k]), int(own.offsets[k + 1])
            examples = {name: array[first:last] for name, array in own.examples.items()}
            held = own._replace(examples=examples, domain=own.domain[first:last])
            params = {name: np.asarray(array) for name, array in sent.params.items()}
            alpha = np.asarray(sent.alpha)
            return client(Call(config, one_client(held, k), k, seed, t, params, alpha))

        def total(sent: Broadcast, cohort: tuple[int, np.ndarray]) -> Any:
            t, clients = cohort
            sums = [call(sent, t, int(k)) for k in clients]
            return jax.tree.map(lambda *leaves: jnp.sum(jnp.stack(leaves), axis=0), *sums)

        return Engine(lambda t: (t, sampler(t)), total, compile=as_it_is)

    task: Any = {
        "task": "torch", "data": GIVEN, "model": GIVEN, "rounds": 3, "clients_per_round": 4,
        "batch_size": 5, "metric": "accuracy",
        "client_optimizer": {"name": "sgd", "learning_rate": 0.5},
    }  # fmt: skip
    config = resolve(task)

    def built(config: Config, *_: Any) -> Built:
        return assemble(config, model, data, engine)

    run(config, folder, make_built=built)
    assert tree.size(jax.eval_shape(model.init, jax.random.key(0))) == 170
    return data, model, create
