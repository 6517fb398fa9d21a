# SPDX-License-Identifier: Apache-2.0
"""What a node made of files and keeps, until one of them is another."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Version(NamedTuple):
    """What tells a file from the one that was there before."""

    path: str
    inode: int
    size: int
    changed: int  # nanoseconds


def versions(paths: Iterable[Path]) -> tuple[Version, ...]:
    """Of files, and of all files in folders; what is not there has none."""
    found: list[Version] = []
    for path in paths:
        for file in (path, *sorted(path.rglob("*"))) if path.is_dir() else (path,):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            found.append(Version(str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


class FileCache(Generic[T]):
    """Things by name, each made anew when the files that it comes from have changed."""

    def __init__(self) -> None:
        self._things: dict[Hashable, tuple[tuple[Version, ...], T]] = {}

    def get(self, name: Hashable, files: Iterable[Path], make: Callable[[], T]) -> T:
        """The thing called `name`, which `make` makes of `files`."""
        now = versions(files)  # before it is made: a change in between is then seen next time
        known = self._things.get(name)
        if known is not None and known[0] == now:
            return known[1]
        thing = make()
        self._things[name] = (now, thing)
        return thing
