# SPDX-License-Identifier: Apache-2.0
"""The thread that writes: in order, whole, and no error is lost."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from agnosticfl.core.state import ServerState, init_state
from agnosticfl.runs import checkpoint
from agnosticfl.runs.records import Record, RecordBook, read_records
from agnosticfl.runs.writing import Writer
from agnosticfl.weights import exponentiated_gradient

THREADS = {"agnosticfl-records", "agnosticfl-states"}


def state(t: int) -> ServerState:
    first = init_state({"w": jnp.ones(2)}, optax.sgd(1.0), exponentiated_gradient(0.1), 2, 1)
    return first._replace(round=jnp.array(t, jnp.int32))


def record(t: int) -> dict[str, Any]:
    return {"round": t, "time": 1.0, "loss": [0.5, float("nan")]}


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


class Slow(RecordBook):
    """A book that waits before each record until it may write it."""

    def __init__(self, folder: Path):
        super().__init__(folder, ["a", "b"], 0)
        self.may = threading.Semaphore(0)

    def write(self, record: Record) -> None:
        assert self.may.acquire(timeout=30)
        super().write(record)


def test_all_that_was_told_is_there_when_it_is_closed(tmp_path: Path):
    writer = Writer(tmp_path, RecordBook(tmp_path, ["a", "b"], 0))
    for t in range(1, 301):
        writer.record(record(t))
    writer.save(state(300), 300)
    writer.close()
    assert [r["round"] for r in read_records(tmp_path)] == list(range(1, 301))
    assert read_records(tmp_path)[0]["loss"] == [0.5, None]
    assert saved(tmp_path) == [300]
    assert THREADS.isdisjoint(thread.name for thread in threading.enumerate())


def test_a_checkpoint_comes_after_the_records_that_it_relies_on(tmp_path: Path):
    checkpoint.save(tmp_path / "checkpoints", state(0))
    book = Slow(tmp_path)
    writer = Writer(tmp_path, book)
    writer.record(record(1))
    writer.save(state(1), 1)
    assert saved(tmp_path) == [0]
    book.may.release()
    writer.wait()
    assert saved(tmp_path) == [0, 1]
    assert [r["round"] for r in read_records(tmp_path)] == [1]
    writer.close()


def test_the_best_model_is_written_before_what_comes_after_it_and_the_last_of_several_is_enough(
    tmp_path: Path,
):
    book, written = Slow(tmp_path), list[tuple[str, int]]()

    def model(name: str) -> Callable[[], None]:
        return lambda: written.append((name, len(read_records(tmp_path))))

    writer = Writer(tmp_path, book)
    writer.record(record(1))
    writer.keep(model("first"))
    writer.record(record(2))
    writer.keep(model("second"))
    book.may.release(2)
    writer.wait()
    assert written == [("second", 1)]
    writer.keep(model("third"))
    writer.close()
    assert written == [("second", 1), ("third", 2)]


def test_a_state_that_would_not_be_kept_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[int] = []
    save = checkpoint.save

    def noted(folder: Path, state: ServerState) -> None:
        written.append(int(state.round))
        save(folder, state)

    checkpoint.save(tmp_path / "checkpoints", state(0))
    monkeypatch.setattr(checkpoint, "save", noted)
    book = Slow(tmp_path)
    writer = Writer(tmp_path, book)
    for t in range(1, 7):
        writer.record(record(t))
        writer.save(state(t), t)
    book.may.release(6)
    writer.close()
    assert written == saved(tmp_path) == [4, 5, 6]
    restored = checkpoint.restore(tmp_path / "checkpoints", state(0), pytest.fail)
    assert restored is not None
    assert restored.round == 6


def test_records_do_not_wait_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    may, save = threading.Event(), checkpoint.save
    save(tmp_path / "checkpoints", state(0))

    def slow(folder: Path, state: ServerState) -> None:
        assert may.wait(30)
        save(folder, state)

    monkeypatch.setattr(checkpoint, "save", slow)
    writer = Writer(tmp_path, RecordBook(tmp_path, ["a", "b"], 0))
    for t in (1, 2):
        writer.record(record(t))
        writer.save(state(t), t)
    writer.wait_for_records()
    assert [r["round"] for r in read_records(tmp_path)] == [1, 2]
    assert saved(tmp_path) == [0]
    may.set()
    writer.close()
    assert saved(tmp_path) == [0, 1, 2]


def test_the_first_checkpoint_of_a_run_is_waited_for(tmp_path: Path):
    writer = Writer(tmp_path, RecordBook(tmp_path, ["a", "b"], 0))
    writer.record(record(1))
    writer.save(state(1), 1)
    assert saved(tmp_path) == [1]
    assert [r["round"] for r in read_records(tmp_path)] == [1]
    writer.close()


def test_a_checkpoint_that_fails_is_raised_and_ends_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(folder: Path, state: ServerState) -> None:
        raise OSError(f"no room for {folder.name} {int(state.round)}")

    monkeypatch.setattr(checkpoint, "save", full)
    writer = Writer(tmp_path, RecordBook(tmp_path, ["a", "b"], 0))
    writer.record(record(1))
    with pytest.raises(OSError, match="no room for checkpoints 1"):
        writer.save(state(1), 1)
    writer.record(record(2))
    writer.close()
    assert [r["round"] for r in read_records(tmp_path)] == [1]


@pytest.mark.parametrize("then", ["record", "save", "wait", "wait_for_records", "close"])
def test_what_goes_wrong_is_raised_where_the_rounds_are(tmp_path: Path, then: str):
    class Broken(RecordBook):
        def write(self, record: Record) -> None:
            raise OSError(f"no room for round {record['round']}")

    writer = Writer(tmp_path, Broken(tmp_path, ["a", "b"], 0))
    writer.record(record(1))
    if then in ("record", "save"):
        writer._records.jobs.join()  # only that it has failed by then
    calls = {"record": (record(2),), "save": (state(2), 2)}
    with pytest.raises(OSError, match="no room for round 1"):
        getattr(writer, then)(*calls.get(then, ()))
    if then != "close":
        writer.record(record(3))  # after an error nothing is written any more
        writer.save(state(3), 3)
        writer.close()
    assert not (tmp_path / "checkpoints").exists()
    assert THREADS.isdisjoint(thread.name for thread in threading.enumerate())
