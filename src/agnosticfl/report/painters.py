# SPDX-License-Identifier: Apache-2.0
"""Plots drawn by several processes, for they take as long as the training of a small model.

The processes are started while rounds go on, and have Matplotlib loaded when the plots come. Each
is a program of its own (`painter.py`), so nothing of the caller's is started twice. Where there are
enough of them this process draws nothing, and so need not load Matplotlib: that would keep its
rounds waiting.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from agnosticfl.report.panels import Plot, Saved

Process: TypeAlias = "subprocess.Popen[bytes]"
Jobs: TypeAlias = "queue.SimpleQueue[tuple[int, Plot] | None]"

MOST = 6  # processes beside this one: there are about seven plots
ENOUGH = 2  # of them draw in less time than it takes this one to load Matplotlib


class Painters:
    """Processes that wait for plots, one for each other core; they end with this one's end.

    Attributes:
      draw_here: whether this process draws, too.
    """

    def __init__(self, number: int | None = None):
        number = _others() if number is None else number
        self.draw_here = number < ENOUGH
        self._processes = list[Process]()
        # By a thread: the system takes a while to start each.
        self._starting = threading.Thread(target=self._start_all, args=(number,))
        self._starting.start()

    def save(self, plots: Iterable[Plot], folder: Path) -> list[Saved]:
        """Saves all of them; what a process fails to do is done here."""
        jobs: Jobs = queue.SimpleQueue()
        saved: dict[int, Saved] = {}

        def there(process: Process) -> None:
            while (job := jobs.get()) is not None:
                number, plot = job
                try:
                    saved[number] = _save_there(process, plot, folder)
                except Exception:  # said where it is tried again, if it was the plot's
                    jobs.put(job)
                    return

        def here() -> None:
            for number, plot in _left(jobs):
                from agnosticfl.report.drawing import save  # here: Matplotlib takes a while to load

                saved[number] = save(plot, folder)

        threads = [threading.Thread(target=there, args=(each,)) for each in self.processes()]
        for thread in threads:
            thread.start()
        for job in enumerate(plots):
            jobs.put(job)
        if self.draw_here:
            here()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            thread.join()
        here()
        return [saved[number] for number in sorted(saved)]

    def processes(self) -> list[Process]:
        """All of them, when they are started."""
        self._starting.join()
        return self._processes

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes():
            process.kill()
            process.communicate()

    def _start_all(self, number: int) -> None:
        with contextlib.suppress(OSError):  # one that the system has no room for is no loss
            for _ in range(number):
                self._processes.append(_start())


def _others() -> int:
    """How many processes there should be."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(MOST, cores - 1)


def _start() -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", "agnosticfl.report.painter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process; the others end when it does
    )


def _save_there(process: Process, plot: Plot, folder: Path) -> Saved:
    """Lets another process save the plot; what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((plot, folder), process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def _left(jobs: Jobs) -> Iterator[tuple[int, Plot]]:
    """What nobody has begun."""
    while not jobs.empty():
        try:
            job = jobs.get_nowait()
        except queue.Empty:  # somebody was faster
            return
        if job is not None:
            yield job
