# SPDX-License-Identifier: Apache-2.0
"""How examples reach the device: all of them once, or a cohort's at a time, ahead of its round."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from agnosticfl.core.federated import FederatedData
from agnosticfl.engines.helpers.plan import Plan, loss_batch

T = TypeVar("T")

HOST_LIMIT = 2**30  # bytes of data that are held on a CPU, whose memory JAX does not tell
DEVICE_SHARE = 0.5  # of an accelerator's memory may hold data


class Pool(NamedTuple):
    """Examples on the device, as stored: those of everybody or those of one cohort."""

    examples: Any  # name -> [n, ...]
    domain: Any  # [n] int32


MakePool: TypeAlias = Callable[[FederatedData], Pool]


def fits(data: FederatedData) -> bool:
    """Whether all examples can stay on the device."""
    size = data.domain.nbytes + sum(array.nbytes for array in data.examples.values())
    memory = jax.local_devices()[0].memory_stats()
    limit = DEVICE_SHARE * memory["bytes_limit"] if memory else HOST_LIMIT
    return size <= limit and data.num_examples < 2**31


def whole(data: FederatedData) -> Pool:
    """All examples."""
    return Pool(dict(data.examples), data.domain)


def on_device(data: FederatedData) -> Pool:
    """All examples, on the default device."""
    return jax.device_put(whole(data))


def last_kept() -> MakePool:
    """The same for several engines in turn: the next one with the same data finds it there."""
    last: list[Any] = []  # features, domains and pool
    lock = threading.Lock()

    def pool(data: FederatedData) -> Pool:
        with lock:
            if not (last and last[0] is data.examples and last[1] is data.domain):
                last.clear()  # first: there may be no room for both
                last.extend((data.examples, data.domain, on_device(data)))
            return last[2]

    return pool


def placed(
    data: FederatedData, pool: Pool | None, cohort: Plan, most: int = 0
) -> tuple[Pool, Plan]:
    """A cohort with its examples: those of `pool`, or its own if that is None."""
    return of_cohort(data, cohort, most) if pool is None else (pool, for_device(cohort))


def for_device(cohort: Plan) -> Plan:
    """The cohort with the numbers of its examples as a device takes them: all data is there."""
    return cohort._replace(rows=cohort.rows.astype(np.int32))


def of_cohort(data: FederatedData, cohort: Plan, most: int = 0) -> tuple[Pool, Plan]:
    """The cohort's examples alone, gathered by the host; `rows` then count in these.

    Args:
      cohort: one, or several stacked.
      most: the examples that there must be room for, so that cohorts have the same shape.
    """
    used = cohort.offsets[..., -1:]
    size = bucket(max(int(used.max()), most, 1))
    padding = np.arange(size) >= used
    rows = np.where(padding, 0, _with_length(cohort.rows, size))
    owner = np.where(padding, cohort.clients.shape[-1], _with_length(cohort.owner, size))
    pool = Pool({name: array[rows] for name, array in data.examples.items()}, data.domain[rows])
    here = np.broadcast_to(np.arange(size, dtype=np.int32), rows.shape)
    return pool, cohort._replace(rows=here, owner=owner.astype(np.int32))


def _with_length(leaf: np.ndarray, length: int) -> np.ndarray:
    """`leaf` cut or filled with 0 along its last axis."""
    missing = max(length - leaf.shape[-1], 0)
    return np.pad(leaf[..., :length], [(0, 0)] * (leaf.ndim - 1) + [(0, missing)])


def bucket(number: int) -> int:
    """`number` rounded up to 4, 5, 6 or 7 times a power of two, and to whole loss batches.

    At most a quarter of a cohort's bytes is padding, and few sizes mean few compilations.
    """
    unit = 2 ** max(number.bit_length() - 3, 0)
    number = -(-number // unit) * unit
    return -(-number // loss_batch()) * loss_batch()


def prefetched(make: Callable[[int], T], step: int = 1) -> Callable[[int], T]:
    """`make`, with `make(t + step)` begun by another thread as soon as t was asked for."""
    ahead: dict[int, Future[T]] = {}

    def get(t: int) -> T:
        waiting = ahead.pop(t, None)
        ahead.clear()
        ahead[t + step] = _thread().submit(make, t + step)
        return make(t) if waiting is None else waiting.result()

    return get


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "agnosticfl-plan")
