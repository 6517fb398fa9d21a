# SPDX-License-Identifier: Apache-2.0
"""SQLite files that somebody else wrote."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agnosticfl.data.formats.limits import reason, short
from agnosticfl.data.splits import check_client_id
from agnosticfl.errors import BadInput, check

MAGIC = b"SQLite format 3\0"


@contextmanager
def open_sqlite(path: Path) -> Generator[sqlite3.Connection]:
    """Opens a file that is neither locked nor changed; damage met in the block is one line."""
    check(path.is_file(), f"{path} does not exist")
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            _check_size(path, database)
            yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: SQLite quotes damaged text
        raise BadInput(f"{path}: damaged SQLite file ({reason(error)})") from error


def tables(path: Path) -> set[str]:
    """The names of the tables."""
    with open_sqlite(path) as database:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {name for (name,) in database.execute(query)}


def client_text(value: Any, place: str) -> str:
    """A client id, stored as text or as UTF-8 bytes."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise BadInput(f"{place}: client id {short(value)} is no UTF-8 text") from error
    check(isinstance(text, str), f"{place}: client id is {short(value)}; it must be text or bytes")
    return check_client_id(text, place)


def _check_size(path: Path, database: sqlite3.Connection) -> None:
    """SQLite itself takes what is missing of the last page for zeros."""
    (pages,), (page_size,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    size, needed = path.stat().st_size, pages * page_size
    check(size >= needed, f"{path}: ends at offset {size}; its header says {needed} bytes")
