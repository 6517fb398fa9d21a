# SPDX-License-Identifier: Apache-2.0
"""Records and checkpoints of a run, written by a thread while the next rounds go on.

Everything is written in the order in which it was told, so a checkpoint never knows of a round that
`metrics.jsonl` does not have. What goes wrong is raised in the thread of the rounds.
"""

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agnosticfl.core.state import ServerState
from agnosticfl.runs import checkpoint
from agnosticfl.runs.records import Record, RecordBook
from agnosticfl.spans import span

WAITING = 4096  # records that may wait to be written; a run that is faster waits for them


class Writer:
    """Writes what a run does into its folder; closed, all of it is there, and so is the book."""

    def __init__(self, out: Path, book: RecordBook):
        self._folder, self._book = out / "checkpoints", book
        self._jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue(WAITING)
        self._failed: BaseException | None = None
        self._waiting: list[int] = []  # rounds of the states that are to be saved
        self._recorded = threading.Event()  # whether the last record is written
        self._recorded.set()
        self._thread = threading.Thread(target=self._work, name="agnosticfl-writer")
        self._thread.start()

    def record(self, record: Record) -> None:
        """Writes what is to be said of a round."""
        written = self._recorded = threading.Event()

        def write() -> None:
            with span("records"):
                self._book.write(record)
            written.set()

        self._put(write)

    def save(self, state: ServerState, t: int) -> None:
        """Saves the state after round t, unless so many newer ones wait that it would not be kept.

        The same checkpoints are there in the end as if each had been waited for.
        """
        self._waiting.append(t)

        def write() -> None:
            self._waiting.pop(0)
            if len(self._waiting) < checkpoint.KEPT:
                with span("checkpoints"):
                    self._book.flush()
                    checkpoint.save(self._folder, state)

        self._put(write)

    def wait_for_records(self) -> None:
        """Until all records are in the files."""
        with span("waiting for the writer"):
            while not self._recorded.wait(0.1):
                self._raise()
        self._raise()

    def wait(self) -> None:
        """Until everything is in the files."""
        with span("waiting for the writer"):
            self._jobs.join()
        self._raise()

    def close(self) -> None:
        """Writes what is waiting, and ends the thread."""
        self._jobs.put(None)
        with span("waiting for the writer"):
            self._thread.join()
        self._book.close()
        self._raise()

    def _put(self, job: Callable[[], Any]) -> None:
        self._raise()
        self._jobs.put(job)

    def _raise(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _work(self) -> None:
        going = True
        while (job := self._jobs.get()) is not None:
            try:
                if going:
                    job()
            except BaseException as failed:  # said where the rounds are
                self._failed, going = failed, False
            finally:
                self._jobs.task_done()
        self._jobs.task_done()
