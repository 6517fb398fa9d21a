# SPDX-License-Identifier: Apache-2.0
"""Records, models and checkpoints of a run, written by threads while the next rounds go on.

One thread writes records and the best model, in their order; another one saves states, each when
the records up to its round are written, so a checkpoint never knows of a round that `metrics.jsonl`
does not have. What goes wrong is raised in the thread of the rounds.
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
        self._failed: list[BaseException] = []
        self._records = _Thread("agnosticfl-records", self._failed)
        self._states = _Thread("agnosticfl-states", self._failed)
        self._waiting: dict[int, ServerState] = {}  # round -> a state that is to be saved
        self._best: Callable[[], None] | None = None  # what writes the best model
        self._lock = threading.Lock()  # of these two
        self._safe = checkpoint.has_any(self._folder)  # whether there is one to go on from

    def record(self, record: Record) -> None:
        """Writes what is to be said of a round."""

        def write() -> None:
            with span("records"):
                self._book.write(record)

        self._enqueue(write)

    def keep(self, best: Callable[[], None]) -> None:
        """Writes the best model so far, before all records and states that come after it.

        One that a better one would replace before it is begun is not written.
        """
        with self._lock:
            self._best = best

        def write() -> None:
            with self._lock:
                found, self._best = self._best, None
            if found is not None:
                with span("best model"):
                    found()

        self._enqueue(write)

    def save(self, state: ServerState, t: int) -> None:
        """Saves the state after round t, unless so many newer ones wait that it would not be kept.

        The same checkpoints are there in the end as if each had been waited for, and no more states
        than these are in memory. The first one of a run is waited for: whatever happens later, a
        full disk say, there is one to go on from.
        """
        with self._lock:
            self._waiting[t] = state
            for old in sorted(self._waiting)[: -checkpoint.KEPT]:
                del self._waiting[old]

        def write() -> None:
            with self._lock:
                found = self._waiting.pop(t, None)
            if found is not None:
                with span("checkpoints"):
                    self._book.flush()
                    checkpoint.save(self._folder, found)

        self._enqueue(lambda: self._states.jobs.put(write))
        if not self._safe:
            self.wait()
            self._safe = True

    def wait_for_records(self) -> None:
        """Until all records are in the files."""
        with span("waiting for the writer"):
            self._records.jobs.join()
        self._raise()

    def wait(self) -> None:
        """Until everything is in the files."""
        self.wait_for_records()
        with span("waiting for the writer"):
            self._states.jobs.join()
        self._raise()

    def close(self) -> None:
        """Writes what is waiting, and ends the threads."""
        with span("waiting for the writer"):
            self._records.end()
            self._states.end()
        self._book.close()
        self._raise()

    def _enqueue(self, job: Callable[[], Any]) -> None:
        self._raise()
        self._records.jobs.put(job)

    def _raise(self) -> None:
        """The first thing that went wrong, once: what follows from it is not told."""
        if self._failed and (failed := self._failed[0]) is not _TOLD:
            self._failed[:] = [_TOLD]
            raise failed


_TOLD = RuntimeError("was raised before")


class _Thread:
    """Does one job after another, until one of them, or of those who share `failed`, fails."""

    def __init__(self, name: str, failed: list[BaseException]):
        self.jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue(WAITING)
        self._failed = failed
        self._thread = threading.Thread(target=self._work, name=name)
        self._thread.start()

    def end(self) -> None:
        """When all jobs are done."""
        self.jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                if not self._failed:
                    job()
            except BaseException as failed:  # said where the rounds are
                self._failed.append(failed)
            finally:
                self.jobs.task_done()
