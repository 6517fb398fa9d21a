# SPDX-License-Identifier: Apache-2.0
"""What a command of training needs, loaded and started by threads while it loads the rest."""

import contextlib
import functools
import gc
import importlib
import sys
import threading
from collections.abc import Generator

SHOWING = ("rich.progress", "rich.table")  # they need nothing of what is loaded meanwhile


@contextlib.contextmanager
def begun(*processes: str | int | None) -> Generator[None]:
    """Loads what shows a run, and starts the device, while the block loads the rest.

    Nobody looks for garbage meanwhile: what is loaded stays, and to go through all of it again and
    again takes as long as to load Flax.

    Args:
      processes: which of several this is, if any are given (`runs.processes.start`).
    """

    def load() -> None:
        for name in SHOWING:
            importlib.import_module(name)

    gc.disable()
    try:
        threading.Thread(target=load, name="agnosticfl-showing").start()
        from agnosticfl.runs.processes import start_device_ahead  # here: it loads JAX

        start_device_ahead(*processes)
        yield
        _pass_over_what_is_loaded()
    finally:
        gc.enable()


@functools.cache
def _pass_over_what_is_loaded() -> None:
    """Whoever looks for garbage later looks among what came later.

    Once: in a process of several commands, garbage of those before would never go. DuckDB must be
    let go: what is left of it at the end it prints as leaks, forty lines of them.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()
