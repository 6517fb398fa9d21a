# SPDX-License-Identifier: Apache-2.0
"""Jobs that need nothing of each other, side by side on a CPU's cores.

One program at a time leaves cores idle, since XLA computes much of a step in one thread. What one
thread asks JAX for is done one after the other, so programs side by side need several threads.
"""

import collections
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

T = TypeVar("T")

MOST = 8  # threads: each has a model, its gradient and what a step keeps for it
AHEAD = 4  # jobs of each thread that may be done before they are asked for


def in_order(job: Callable[[int], T], number: int) -> Iterator[T]:
    """job(0), job(1), … job(number − 1), the next ones under way while one is waited for.

    Each is computed by itself and they come in their order: what is made of them has the same bits,
    however many threads there are.
    """
    threads = num_threads()
    if threads == 1:
        yield from map(job, range(number))
        return
    settings = settings_of_caller()

    def whole(k: int) -> T:
        with settings():
            return jax.block_until_ready(job(k))

    under_way: collections.deque[Future[T]] = collections.deque()
    for k in range(number):
        under_way.append(_pool(threads).submit(whole, k))
        if len(under_way) > AHEAD * threads:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def num_threads() -> int:
    """One for each core; one for an accelerator, which does one thing after another anyway."""
    if jax.default_backend() != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, MOST)


def settings_of_caller() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What sets JAX in another thread as it is set in this one, where each has its own settings."""
    config: Any = jax.config
    precision, nans = config.jax_default_matmul_precision, config.jax_debug_nans

    @contextlib.contextmanager
    def settings() -> Generator[None]:
        with jax.default_matmul_precision(precision), jax.debug_nans(nans):
            yield

    return settings


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "agnosticfl-step")
