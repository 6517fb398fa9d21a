# SPDX-License-Identifier: Apache-2.0
"""Several processes, on one machine or many, that make one run together.

Every process goes through the same rounds and holds the same state; they share the clients of a
cohort. Process 0 alone reads and writes the run folder, and tells the others what it found there.
"""

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from agnosticfl.errors import BadInput, check
from agnosticfl.spans import span

T = TypeVar("T")

PATIENCE = 60  # seconds without a sign of life after which a process counts as lost
# What the libraries beneath JAX say when they no longer reach a process; they share no type.
BROKEN = re.compile("gloo|nccl|coordination service|distributed service|connection", re.IGNORECASE)


class Lost(Exception):
    """Another process ended before the run did."""


def start_device_ahead(*given: str | int | None) -> None:
    """Lets a thread start the device, which takes an accelerator seconds, while this one goes on.

    Several processes (`given` is as for `start`) must join first: their devices start then. An
    accelerator's memory will be taken as it is needed, unless the user has told JAX otherwise: to
    take three quarters of an H200's at its start, as JAX would, takes more than a second.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def devices() -> None:
        with contextlib.suppress(Exception), span("starting the device"):  # asked for again later
            jax.devices()

    if not _several(*given):
        threading.Thread(target=devices, name="agnosticfl-device").start()


def start(coordinator: str | None, number: int | None, index: int | None) -> None:
    """Joins the other processes, if there are any. Call it before anything of JAX runs.

    Without arguments it looks for those that SLURM's srun or Open MPI's mpirun has started.

    Args:
      coordinator: HOST:PORT, where process 0 can be reached.
      number: how many processes there are.
      index: which of them this is, from 0 on.
    """
    given = (coordinator, number, index)
    if not _several(*given):
        return
    if given != (None, None, None):
        _check(*given)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # one collective after the other
    jax.distributed.initialize(
        *given, heartbeat_timeout_seconds=PATIENCE, shutdown_timeout_seconds=PATIENCE
    )


def _check(coordinator: str | None, number: int | None, index: int | None) -> None:
    if coordinator is None or number is None or index is None:
        raise BadInput(
            "--coordinator, --num-processes and --process-id go together: give all three"
        )
    host, _, port = coordinator.rpartition(":")
    good = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
    check(good, f"--coordinator is {coordinator!r}; it must be HOST:PORT")
    check(number >= 1, f"--num-processes is {number}; it must be at least 1")
    check(0 <= index < number, f"--process-id is {index}; it must be from 0 to {number - 1}")


def _several(*given: str | int | None) -> bool:
    return any(each is not None for each in given) or _launched_together()


def _launched_together() -> bool:
    """Whether a launcher started more than one of us. A job's own shell is not started by one."""
    names = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    return any(int(os.environ.get(name) or 1) > 1 for name in names)


def may_work_beside_rounds() -> bool:
    """Whether threads may give the device work of their own.

    Not to a CPU, whose cores have enough to do; nor with several processes, which must all do the
    same things in the same order.
    """
    return jax.default_backend() != "cpu" and jax.process_count() == 1


def is_first() -> bool:
    """Whether this process writes the run folder."""
    return jax.process_index() == 0


def from_first(make: Callable[[], T]) -> T:
    """What process 0 makes, for all of them; bad input that it finds is everybody's.

    Args:
      make: called by process 0 only; its result must be fit for JSON.
    """
    if jax.process_count() == 1:
        return make()
    answer: dict[str, Any] = {}
    if is_first():
        try:
            answer = {"value": make()}
        except BadInput as error:
            answer = {"error": str(error)}
    answer = json.loads(_bytes_from_first(json.dumps(answer).encode()))
    check("error" not in answer, answer.get("error", ""))
    return answer["value"]


def arrays_from_first(value: T) -> T:
    """The arrays that process 0 has, bit by bit; the others give some of the same shapes."""
    if jax.process_count() == 1:
        return value

    def send(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        bits = np.frombuffer(leaf.tobytes(), np.uint8)
        sent = np.asarray(multihost_utils.broadcast_one_to_all(bits))
        return np.frombuffer(sent.tobytes(), leaf.dtype).reshape(leaf.shape)

    return jax.tree.map(send, value)


def any_of_them(flag: bool) -> bool:
    """Whether any process says so: all of them get the same answer."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


@contextlib.contextmanager
def noticing_losses() -> Generator[None]:
    """Turns what JAX raises when another process is gone into `Lost`."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if jax.process_count() == 1 or not BROKEN.search(str(error)):
            raise
        raise Lost("another process of this run has ended") from error


@contextlib.contextmanager
def joined(coordinator: str | None, number: int | None, index: int | None) -> Generator[None]:
    """`start`, then the block. If it fails here alone, this process ends at once, status 1.

    Otherwise it would wait for the others, and they for it. What all of them agree on (bad input,
    a stop) leaves in the usual way.
    """
    start(coordinator, number, index)
    try:
        yield
    except (Lost, OSError) as error:
        if jax.process_count() == 1:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _bytes_from_first(message: bytes) -> bytes:
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    padded = np.frombuffer(message.ljust(length)[:length], np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()
