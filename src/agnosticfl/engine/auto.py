# SPDX-License-Identifier: Apache-2.0
"""The engine that suits the model and the device. All of them give the same numbers."""

from typing import Any

import jax

from agnosticfl.client import ClientWork
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine.lanes import lanes as on_lanes
from agnosticfl.engine.seam import Engine
from agnosticfl.engine.steps import steps
from agnosticfl.model import Model
from agnosticfl.sampling import Sampler


def auto(
    work: ClientWork,
    data: FederatedData,
    sampler: Sampler,
    seed: int,
    *,
    lanes: int | None = None,
    **options: Any,
) -> Engine:
    """`steps` for a model with a convolution on a CPU, `lanes` for everything else.

    A rule and no measurement: a run that is resumed must not come to another choice. A number of
    `lanes` asks for lanes in any case; the other options are theirs too.
    """
    on_cpu = lanes is None and jax.default_backend() == "cpu"
    if on_cpu and has_convolution(work.model, data):
        return steps(work, data, sampler, seed)
    return on_lanes(work, data, sampler, seed, lanes=lanes, **options)


def has_convolution(model: Model, data: FederatedData) -> bool:
    """Whether the loss of one example takes a convolution."""
    one = {name: array[:1] for name, array in data.examples.items()}
    params = jax.eval_shape(model.init, jax.random.key(0))
    trace = jax.make_jaxpr(lambda w, e: model.per_example_loss(w, e, None))(params, one)
    return "conv_general_dilated" in str(trace)
