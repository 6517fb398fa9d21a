# SPDX-License-Identifier: Apache-2.0
"""A classifier with every metric that sums over clients tell, and examples for it."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from agnosticfl.core.federated import FederatedData, from_arrays
from agnosticfl.core.model import Model, from_functions

COUNTED = ("accuracy", "recall", "f1", "min_recall_precision", "balanced_accuracy")
BINNED = ("auroc", "auprc", "break_even")
METRICS = (*COUNTED, *BINNED, "calibration_error")


def classifier(classes: int, metrics: tuple[str, ...] = METRICS) -> Model:
    """Logits x · w."""

    def forward(params: Any, examples: Any) -> Any:
        return examples["x"] @ params["w"]

    def loss(params: Any, examples: Any) -> Any:
        return jnp.sum(jnp.square(forward(params, examples)), axis=1)

    return from_functions(
        lambda _: {"w": jnp.zeros((3, classes))}, loss, forward=forward, metrics=metrics
    )


def examples(classes: int, n: int = 700, seed: int = 0, clients: int = 9) -> FederatedData:
    rng = np.random.default_rng([seed, classes])
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + rng.integers(classes - 1, size=n)
    return from_arrays({"x": x, "y": y}, rng.integers(clients, size=n), rng.integers(3, size=n))


def weights(classes: int, size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(classes)
    return {"w": jnp.asarray(size * rng.normal(size=(3, classes)), jnp.float32)}
