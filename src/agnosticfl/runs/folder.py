# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: whose it is, who may write it, and what is in it already."""

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TextIO

from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json, write_json
from agnosticfl.runs import processes
from agnosticfl.runs.about import FILE as ABOUT
from agnosticfl.runs.build import Built
from agnosticfl.runs.checkpoint import has_any
from agnosticfl.runs.config import as_table, first_difference
from agnosticfl.runs.records import METRICS

LOCK = "run.lock"
SPENT = "privacy.json"
DOMAINS = "domains.json"  # their names: what is reported of a run that is not finished needs them


@contextlib.contextmanager
def locked(out: Path) -> Generator[None]:
    """Keeps every other run out of the folder while the block runs; process 0 holds the lock."""
    held: list[TextIO] = []
    made: list[Path] = []

    def take() -> bool:
        check(not out.exists() or out.is_dir(), f"{out} is not a folder")
        made.extend(place for place in (out, *out.parents) if not place.exists())
        out.mkdir(parents=True, exist_ok=True)
        held.append(_lock(out))
        return True

    processes.from_first(take)
    try:
        yield
    finally:
        for lock in held:
            # The file of a run stays: whoever removed it might lock another one than the others.
            lock.truncate(0)
            if not (out / "config.json").exists():
                (out / LOCK).unlink()
                _remove_empty(made)
            lock.close()


def _lock(out: Path) -> TextIO:
    lock = (out / LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with lock:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
        raise BadInput(f"{out} is being written by another process (pid {owner})") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _remove_empty(folders: Sequence[Path]) -> None:
    """Of a run that was refused nothing is left."""
    for folder in folders:
        if any(folder.iterdir()):
            return
        folder.rmdir()


def check_folder(built: Built, out: Path, resume: bool, overwrite: bool) -> bool:
    """Makes sure that the folder is free, or that what is in it belongs to this configuration.

    Returns whether the run in it is complete. Nothing is written.
    """
    if _is_replaced(out, resume, overwrite):
        return False
    if not (out / "config.json").exists():
        # A crash before the configuration was there leaves no more than these.
        free = all(_leftover(path) for path in out.iterdir())
        check(free, f"{out} exists and holds no run; choose another --out")
        return False
    check(
        resume,
        f"{out} holds a run already; go on with --resume, replace it with --overwrite or choose"
        " another --out",
    )
    new = as_table(built.config)
    difference = first_difference(read_json(out / "config.json"), new)
    check(difference is None, f"{out} holds a run of another configuration: {difference}")
    return (out / "summary.json").exists()


def open_folder(
    built: Built, out: Path, resume: bool, overwrite: bool, say: Callable[[str], Any]
) -> None:
    """Makes a folder ready that `check_folder` has nothing against."""
    if _is_replaced(out, resume, overwrite):
        if not overwrite:
            say(f"{out} held a run that ended before its first checkpoint: starting anew")
        _clear(out)
        check_folder(built, out, resume, overwrite)  # what is no part of a run is left
    if not (out / "config.json").exists():
        write_json(out / "engine.json", dict(built.algorithm.choices))
        write_json(out / DOMAINS, list(built.data.train.domains))
        write_json(out / "config.json", as_table(built.config))


def _is_replaced(out: Path, resume: bool, overwrite: bool) -> bool:
    """Whether the run in the folder will make room for another one."""
    there = (out / "config.json").exists()
    return there and (overwrite or (not resume and _never_got_far(out)))


def found_before(out: Path) -> dict[str, Any]:
    """What the engine of an interrupted run had chosen: going on takes the same, for its bits."""
    return read_json(out / "engine.json") if (out / "engine.json").exists() else {}


@contextlib.contextmanager
def saying_full_disk(out: Path) -> Generator[None]:
    """Turns whatever a library raises when the disk is full into one line about it."""
    in_threads = threading.excepthook

    def quiet(failed: threading.ExceptHookArgs) -> None:
        if not _is_about_full_disk(failed.exc_value):  # which this thread will hear of as well
            in_threads(failed)

    threading.excepthook = quiet
    try:
        yield
    except Exception as error:
        if not _is_about_full_disk(error):
            raise
        raise OSError(
            f"no space left on the disk of {out}; the newest whole checkpoint is kept: make room"
            " and go on with --resume"
        ) from error
    finally:
        threading.excepthook = in_threads


def _is_about_full_disk(error: BaseException | None) -> bool:
    """Libraries wrap what the system said, or quote it."""
    while error is not None:
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _never_got_far(out: Path) -> bool:
    """A run that crashed before its first checkpoint: there is nothing to go on from.

    One that has spent privacy is not forgotten so easily.
    """
    ended = (out / "summary.json").exists() or (out / SPENT).exists()
    return not ended and not has_any(out / "checkpoints")


def _clear(out: Path) -> None:
    """Removes a run; its configuration goes last, so that a crash leaves a folder that says so."""
    for name in ("checkpoints", "tensorboard", "models", "predictions"):
        shutil.rmtree(out / name, ignore_errors=True)
    files = ("summary.json", METRICS, SPENT, ABOUT, "engine.json", DOMAINS, "config.json")
    for name in files:
        (out / name).unlink(missing_ok=True)


def _leftover(path: Path) -> bool:
    return path.suffix == ".tmp" or path.name in ("engine.json", DOMAINS, LOCK, *_MADE_FROM_IT)


# What a report makes of a run; it is made again.
_MADE_FROM_IT = ("report.html", "table.md", "table.tex", "comparison.json", "plots")
