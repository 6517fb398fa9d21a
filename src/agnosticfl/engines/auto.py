# SPDX-License-Identifier: Apache-2.0
"""The engine that suits the model and the device. All of them give the same numbers."""

from collections.abc import Callable
from typing import Any

import jax

from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Examples, Model, Params
from agnosticfl.core.programs import learned, shapes_of
from agnosticfl.core.random import any_key
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork
from agnosticfl.engines.base import Engine
from agnosticfl.engines.helpers.feed import MakePool
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.engines.lanes import lanes_engine
from agnosticfl.engines.steps import steps_engine
from agnosticfl.registry import ENGINES


@ENGINES.add("auto")
def auto_engine(
    work: ClientWork,
    data: FederatedData,
    sampler: Sampler,
    seed: int,
    *,
    lanes: int | None = None,
    devices: int | None = None,
    model_devices: int | None = None,
    tuner: Tuner | None = None,
    pool: MakePool | None = None,
) -> Engine[Any]:
    """`steps` for a model with a convolution on a CPU, `lanes` for everything else.

    A rule and no measurement: a run that is resumed must not come to another choice. A number of
    `lanes` or `model_devices` asks for lanes in any case; these, `devices`, `tuner` and `pool` are
    as for `lanes_engine`.
    """
    free = lanes is None and model_devices is None
    if free and jax.default_backend() == "cpu" and has_convolution(work.model, data):
        return steps_engine(work, data, sampler, seed, pool=pool)
    return lanes_engine(
        work,
        data,
        sampler,
        seed,
        lanes=lanes,
        devices=devices,
        model_devices=model_devices,
        tuner=tuner,
        pool=pool,
    )


def has_convolution(model: Model, data: FederatedData) -> bool:
    """Whether the loss of one example takes a convolution."""
    one = {name: array[:1] for name, array in data.examples.items()}
    params = shapes_of(model.init, any_key())
    return learned(_convolves, model.per_example_loss, params, one)


def _convolves(loss: Callable[..., Any], params: Params, one: Examples) -> bool:
    trace = jax.make_jaxpr(lambda w, e: loss(w, e, None))(params, one)
    return "conv_general_dilated" in str(trace)
