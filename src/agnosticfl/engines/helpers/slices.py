# SPDX-License-Identifier: Apache-2.0
"""A client's own step divided among devices, for a model too large for one beside its lanes.

The devices that share a cohort are then groups of devices, and each device of a group holds a slice
of every large array: of w, of each lane's w and optimizer state, and of the sum. What the devices
of a group have to tell each other within a step, the compiler finds out by itself.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agnosticfl.core import compiling
from agnosticfl.core.tree import PyTree
from agnosticfl.core.work import ClientWork
from agnosticfl.engines.base import compiled, remembered
from agnosticfl.engines.helpers import shards
from agnosticfl.errors import check

AXIS = "slices"
LEAST = 1024  # numbers of an array that is divided; the others are the same everywhere


def in_groups(row: Mesh, group: int) -> Mesh:
    """The devices of `row`, so many of them to each part of a cohort."""
    if group == 1:
        return row
    check(
        row.size % group == 0,
        f"model_devices is {group}; it must divide the number of devices, {row.size}",
    )
    check(
        jax.process_count() == 1,
        f"model_devices is {group}; where several processes share a run it must be 1",
    )
    return Mesh(row.devices.reshape(-1, group), (shards.AXIS, AXIS))


def group_of(mesh: Mesh) -> int:
    """How many devices each part of a cohort has."""
    return mesh.shape.get(AXIS, 1)


def spec(shape: tuple[int, ...], group: int) -> PartitionSpec:
    """How an array is divided: along its longest axis that a group can share, the last of equals.

    One that is small, or has no such axis, is the same everywhere.
    """
    able = [axis for axis, length in enumerate(shape) if length % group == 0]
    if group == 1 or math.prod(shape) < LEAST or not able:
        return shards.SAME
    longest = max(able, key=lambda axis: (shape[axis], axis))
    return PartitionSpec(*(AXIS if axis == longest else None for axis in range(len(shape))))


@remembered
def divided(work: ClientWork, group: int) -> ClientWork:
    """The same work, done by `group` devices together, inside `shards.over_parts`.

    What lasts from step to step is told to be divided: w, gradients and the optimizer's state.
    """
    if group == 1:
        return work
    model, optimizer = work.model, work.optimizer

    def in_slices(arrays: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, spec(leaf.shape, group)), arrays
        )

    def loss(params: Any, *others: Any) -> Any:
        with compiling.in_slices():
            return model.per_example_loss(in_slices(params), *others)

    def update(gradient: Any, *others: Any, **extra: Any) -> Any:
        return in_slices(optimizer.update(in_slices(gradient), *others, **extra))

    return work._replace(
        model=model._replace(per_example_loss=loss),
        optimizer=optimizer._replace(
            init=lambda params: in_slices(optimizer.init(params)), update=update
        ),
    )


def compile_on(mesh: Mesh) -> Callable[[Any], Any]:
    """Compiles a round whose state is on all devices and stays there, in slices if it has any."""

    def places(arrays: PyTree) -> PyTree:
        group = group_of(mesh)
        return jax.tree.map(lambda leaf: NamedSharding(mesh, spec(leaf.shape, group)), arrays)

    def compile(round: Callable[..., Any]) -> Callable[..., Any]:
        def placed(state: PyTree, cohort: Any) -> Any:
            after = round(state, cohort)
            return jax.lax.with_sharding_constraint(after, places(after))

        play = compiled(placed)
        return lambda state, cohort: play(jax.device_put(state, places(state)), cohort)

    return compile
