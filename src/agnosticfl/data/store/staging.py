# SPDX-License-Identifier: Apache-2.0
"""A directory that appears whole or not at all, even if the program is killed."""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

from agnosticfl.errors import BadInput
from agnosticfl.files import sync

LOCK = "lock"  # name of a file in the directory that is being built


@contextlib.contextmanager
def staging(out: Path, check_target: Callable[[Path], None]) -> Generator[Path]:
    """Gives an empty directory beside `out` that becomes `out` when the block ends well.

    If the block fails, the directory is removed. What a killed program left is removed by the
    next build of the same `out`. An existing `out` is replaced if `check_target(out)` lets it pass.
    """
    out = out.resolve()
    stage = out.with_name(f".{out.name}.building")
    stage.mkdir(parents=True, exist_ok=True)
    with _locked(stage, out):
        try:
            _empty(stage)
            _finish_replacement(out)
            check_target(out)
            yield stage
            _publish(stage, out)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def _locked(stage: Path, out: Path) -> Generator[None]:
    """Holds a lock that the system takes back when the process dies."""
    with (stage / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{out} is being built by another process") from None
        yield


def _empty(stage: Path) -> None:
    for entry in stage.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _finish_replacement(out: Path) -> None:
    """Takes up where a program was killed between the two renames of `_publish`."""
    old = _replaced(out)
    if old.exists() and not out.exists():
        old.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _publish(stage: Path, out: Path) -> None:
    (stage / LOCK).unlink()
    for path in [*stage.rglob("*"), stage]:
        sync(path)
    if out.exists():
        out.rename(_replaced(out))
    stage.rename(out)
    sync(out.parent)
    _finish_replacement(out)
