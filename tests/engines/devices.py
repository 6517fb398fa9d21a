# SPDX-License-Identifier: Apache-2.0
"""Tests on simulated devices, which must be asked for before JAX starts."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

FLAG = "--xla_force_host_platform_device_count=8"
SIMULATED = FLAG in os.environ.get("XLA_FLAGS", "")
on_8_devices = pytest.mark.skipif(not SIMULATED, reason="runs in a process of its own")
starts_them = pytest.mark.skipif(SIMULATED, reason="this is that process")


def run_on_8_devices(marks: str, *files: str) -> None:
    """Runs the tests of these files that have such marks, in a process with simulated devices."""
    places = [str(Path(__file__).with_name(file)) for file in files]
    inner = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, *places],
        env=os.environ | {"XLA_FLAGS": FLAG, "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert inner.returncode == 0, inner.stdout[-4000:]
    assert " passed, 1 skipped" in inner.stdout


def close(one: Any, other: Any) -> None:
    """The same up to the order of sums."""
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6), one, other)


@contextlib.contextmanager
def compilations() -> Generator[Callable[[], int]]:
    """How many programs were compiled since then."""
    compiled = 0

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal compiled
        del duration_secs, kwargs
        compiled += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield lambda: compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
