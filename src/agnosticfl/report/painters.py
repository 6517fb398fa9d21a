# SPDX-License-Identifier: Apache-2.0
"""Plots saved by several processes, for they take as long as the training of a small model.

The processes are started while rounds go on, and have Matplotlib loaded when the plots come. Each
is a program of its own (`painter.py`), so nothing of the caller's is started twice.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from agnosticfl.report.drawing import Plot, Saved  # here: Matplotlib takes a while to load

    Jobs: TypeAlias = "queue.SimpleQueue[tuple[int, Plot] | None]"

MOST = 3  # processes beside this one: there are about seven plots


class Painters:
    """Processes that wait for plots, one for each other core; they end with this one's end."""

    def __init__(self, number: int | None = None):
        self._processes = [_start() for _ in range(_others() if number is None else number)]

    def save(self, plots: "Iterable[Plot]", folder: Path) -> "list[Saved]":
        """Saves all of them, in this process too; what another one fails to do is done here."""
        from agnosticfl.report.drawing import Saved, save

        jobs: Jobs = queue.SimpleQueue()
        saved: dict[int, Saved] = {}

        def there(process: "subprocess.Popen[bytes]") -> None:
            while (job := jobs.get()) is not None:
                number, plot = job
                try:
                    saved[number] = Saved(plot, _save_there(process, plot, folder))
                except Exception:  # said where it is tried again, if it was the plot's
                    jobs.put(job)
                    return

        def here() -> None:
            for number, plot in _left(jobs):
                saved[number] = save(plot, folder)

        threads = [threading.Thread(target=there, args=(each,)) for each in self._processes]
        for thread in threads:
            thread.start()
        for job in enumerate(plots):
            jobs.put(job)
        here()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            thread.join()
        here()
        return [saved[number] for number in sorted(saved)]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()


def _others() -> int:
    """How many processes there should be."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(MOST, cores - 1)


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "agnosticfl.report.painter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process; the others end when it does
    )


def _save_there(process: "subprocess.Popen[bytes]", plot: "Plot", folder: Path) -> bytes:
    """Lets another process save the plot; the SVG that it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((plot, folder), process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def _left(jobs: "Jobs") -> "Iterator[tuple[int, Plot]]":
    """What nobody has begun."""
    while not jobs.empty():
        try:
            job = jobs.get_nowait()
        except queue.Empty:  # somebody was faster
            return
        if job is not None:
            yield job
