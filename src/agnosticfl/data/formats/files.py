# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a data set among what the user named: files, or folders that hold them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agnosticfl.data.formats.limits import reason
from agnosticfl.errors import BadInput, check


def find_file(sources: Sequence[Path], *names: str) -> Path:
    """The one file called by one of `names`, in any mix of upper and lower case."""
    wanted = {name.lower() for name in names}
    found = sorted({p for p in _candidates(sources) if p.is_file() and p.name.lower() in wanted})
    places = ", ".join(str(source) for source in sources)
    check(bool(found), f"no file {' or '.join(names)} in {places}")
    check(len(found) == 1, f"{' and '.join(map(str, found))} are the same part; give one of them")
    return found[0]


def all_files(sources: Sequence[Path]) -> list[Path]:
    """The named files, and everything below the named folders, in a fixed order."""
    found: list[Path] = []
    for source in _existing(sources):
        below = sorted(source.rglob("*")) if source.is_dir() else [source]
        found += [path for path in below if path.is_file()]
    return list(dict.fromkeys(found))


@contextmanager
def reading(place: object) -> Generator[None]:
    """Turns what the system or a library says of a missing or damaged file into one line.

    Readers of compressed formats meet damage with exceptions of a dozen kinds, from EOFError to
    IndexError, so all are caught; little but their calls should stand inside.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{place} cannot be read ({reason(error) or type(error).__name__})"
        ) from error


def _candidates(sources: Sequence[Path]) -> Iterator[Path]:
    for source in _existing(sources):
        yield from source.iterdir() if source.is_dir() else [source]


def _existing(sources: Sequence[Path]) -> Iterator[Path]:
    for source in map(Path, sources):
        if not source.exists():
            raise BadInput(f"{source} does not exist; give a file, or the folder that holds it")
        yield source
