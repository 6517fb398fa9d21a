# SPDX-License-Identifier: Apache-2.0
"""How exactly matrix products are computed where the hardware has a choice.

Only the factors of a product are rounded. What is added up, and everything else (losses, updates,
sums over clients, the server's state), stays float32. A CPU has no such choice: there all three are
float32.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from agnosticfl.errors import choose
from agnosticfl.model import Model

P = ParamSpec("P")
R = TypeVar("R")

# Ours -> JAX's. An accelerator's own default for float32 would be tf32.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "BF16_BF16_F32"}


def in_precision(function: Callable[P, R], precision: str) -> Callable[P, R]:
    """`function`, with every matrix product that it traces (gradients too) in this precision."""
    name = PRECISIONS[choose(precision, PRECISIONS, "precision")]

    @functools.wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        with jax.default_matmul_precision(name):
            return function(*args, **options)

    return wrapped


def model_in_precision(model: Model, precision: str) -> Model:
    """`model` as evaluation calls it."""
    return model._replace(
        per_example_loss=in_precision(model.per_example_loss, precision),
        per_example_metrics=in_precision(model.per_example_metrics, precision),
    )
