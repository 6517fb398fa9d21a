# SPDX-License-Identifier: Apache-2.0
"""A cohort shared among devices: each sums over the clients of its own part, then all add up.

A `ClientSum` is a sum, so nothing else has to know. The devices may belong to several processes,
which then plan and hold their own parts only.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast, SumOverClients
from agnosticfl.errors import check

AXIS = "parts"
EACH, SAME = PartitionSpec(AXIS), PartitionSpec()  # a part of its own; the same everywhere
InStep: TypeAlias = Callable[[Any], Any]  # counts of a part's loops -> how far they go


def mesh_of(devices: int | None) -> Mesh:
    """`devices` devices of every process (all of them if None) in one row."""
    local = jax.local_device_count()
    number = local if devices is None else devices
    check(1 <= number <= local, f"number of devices is {number}; it must be from 1 to {local}")
    own: dict[int, list[Any]] = {}
    for device in jax.devices():
        own.setdefault(device.process_index, []).append(device)
    return Mesh(np.array([d for each in own.values() for d in each[:number]]), (AXIS,))


def num_parts(mesh: Mesh) -> int:
    """How many parts a cohort has: one for each device, or group of devices (`slices`)."""
    return mesh.shape[AXIS]


def own_parts(mesh: Mesh) -> range:
    """Which parts this process computes: they are next to each other."""
    first = mesh.devices.reshape(num_parts(mesh), -1)[:, 0]  # device of each
    mine = [i for i, d in enumerate(first) if d.process_index == jax.process_index()]
    return range(mine[0], mine[-1] + 1)


def spread(mesh: Mesh, parts: Any) -> Any:
    """The parts of this process, stacked, each on its device; together with the others' parts."""
    place = NamedSharding(mesh, EACH)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(place, leaf), parts)


def everywhere(mesh: Mesh, value: Any) -> Any:
    """`value`, which all processes have alike, on all devices."""
    place = NamedSharding(mesh, SAME)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(place, leaf), value)


def here(value: Any) -> Any:
    """What is on all devices, the same or in slices, as one of this process would hold it whole."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, Array):
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return jax.device_put(leaf, jax.local_devices()[0])

    return jax.tree.map(whole, value)


def of_first_process(number: int) -> int:
    """The number that process 0 has, for all."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def by_itself(counts: Any) -> Any:
    """How long the loops of a part are: each part goes as far as it has to."""
    return counts


def as_the_longest(counts: Any) -> Any:
    """The same where all parts have to be at the same step: as far as the longest one."""
    return jax.lax.pmax(counts, AXIS)


def over_parts(mesh: Mesh, sum_over_part: SumOverClients, specs: Any) -> SumOverClients:
    """Σ over all parts of a cohort, in one compiled computation.

    Args:
      specs: `EACH` or `SAME` for each field of a cohort.
    """

    def own_sum(sent: Broadcast, cohort: Any) -> Any:
        fields = zip(cohort, specs, strict=True)
        own = type(cohort)(*(tree.row(f, 0) if spec == EACH else f for f, spec in fields))
        total = sum_over_part(sent, own)
        return total if num_parts(mesh) == 1 else jax.lax.psum(total, AXIS)

    # Unchecked: a lane starts at w, the same on all devices, and carries its own w from there.
    return jax.shard_map(
        own_sum,
        mesh=mesh,
        in_specs=(SAME, specs),
        out_specs=SAME,
        axis_names={AXIS},
        check_vma=False,
    )


def over_processes(mesh: Mesh) -> Callable[[Any], Any]:
    """Adds sums of which every process has its own, with one device of each."""
    add = jax.jit(
        lambda stacked: jax.tree.map(lambda leaf: leaf.sum(axis=0), stacked),
        out_shardings=NamedSharding(mesh, SAME),
    )
    return lambda own: here(add(spread(mesh, jax.tree.map(lambda leaf: leaf[None], own))))
