# SPDX-License-Identifier: Apache-2.0
"""What a command of training needs, loaded and started by threads while it loads the rest."""

import importlib
import threading

SHOWING = ("rich.progress", "rich.table")  # they need nothing of what is loaded meanwhile


def begin(*processes: str | int | None) -> None:
    """Loads what shows a run, and starts the device.

    Args:
      processes: which of several this is, if any are given (`runs.processes.start`).
    """

    def load() -> None:
        for name in SHOWING:
            importlib.import_module(name)

    threading.Thread(target=load, name="agnosticfl-showing").start()
    from agnosticfl.runs.processes import start_device_ahead  # here: it loads JAX

    start_device_ahead(*processes)
