# SPDX-License-Identifier: Apache-2.0
"""What the compiler is told beyond the program."""

import contextlib
import contextvars
from collections.abc import Generator
from pathlib import Path

from agnosticfl.core.lazy_jax import jax

FEWEST_MULTIPROCESSORS = 64  # of a card that is no small part of one


def for_nvidia(**options: str | bool) -> dict[str, str | bool] | None:
    """These options where the device is an NVIDIA card, and None elsewhere: nobody else knows them.

    They come from XLA's own list; what is not in it is refused when something is compiled.
    """
    return options if on_nvidia() else None


def on_nvidia() -> bool:
    """Whether programs are for an NVIDIA card: some are written for it alone."""
    return "cuda" in jax.local_devices()[0].client.platform_version


_IN_SLICES = contextvars.ContextVar("in_slices", default=False)


@contextlib.contextmanager
def in_slices() -> Generator[None]:
    """What is traced in here is divided among devices by the compiler, which divides no kernels."""
    before = _IN_SLICES.set(True)
    try:
        yield
    finally:
        _IN_SLICES.reset(before)


def on_hopper() -> bool:
    """Whether programs are for a whole card like the H200, for which kernels of our own are made.

    They need its shared memory and products, some of them many multiprocessors at the same time;
    on others they were never run.
    """
    return not _IN_SLICES.get() and is_hopper() and has_kernels()


def is_hopper() -> bool:
    """Whether the device is such a card."""
    device = jax.local_devices()[0]
    hopper = on_nvidia() and getattr(device, "compute_capability", "") == "9.0"
    return hopper and getattr(device, "core_count", 0) >= FEWEST_MULTIPROCESSORS


def has_kernels() -> bool:
    """Whether this JAX still has Triton's kernels, which are to leave it one day."""
    # Where they would be: to ask for the module would load much.
    folder = Path(jax.numpy.__file__ or "").parents[1]
    return (folder / "experimental" / "pallas" / "triton.py").exists()
