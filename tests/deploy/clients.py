# SPDX-License-Identifier: Apache-2.0
"""Clients for tests."""

from typing import Any

import numpy as np

from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.random import example_order
from agnosticfl.deploy.node.contribute import Call


def numpy_client(call: Call) -> ClientSum:
    """Procedure CLIENT for the toy's loss (x − w)², in numpy: a second opinion."""
    x, domain = call.data.examples["x"].astype(np.float64), call.data.domain
    count = np.bincount(domain, minlength=len(call.alpha))
    w = float(call.params["w"])
    loss = np.bincount(domain, (x - w) ** 2, minlength=len(call.alpha))
    beta, trained = float(call.alpha @ count), w
    number = np.array([call.client])
    order = example_order(call.seed, call.round, number, np.array([len(x)]), len(x))[0]
    rate = call.config.client_optimizer["learning_rate"]
    for start in range(0, len(x), call.config.batch_size):
        rows = order[start : start + call.config.batch_size]
        gradient = call.alpha[domain[rows]] @ (2 * (trained - x[rows])) / beta
        trained -= rate * gradient
    leaves = (beta * (w - trained), beta, loss, count, 0.0)
    arrays: list[Any] = [np.asarray(leaf, np.float32) for leaf in leaves]
    return ClientSum(*arrays)
