# SPDX-License-Identifier: Apache-2.0
"""Logs: a time on every line, names in place of numbers, files that do not grow for ever."""

import contextlib
import json
import logging
import logging.handlers
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agnosticfl.deploy.node.file_cache import FileCache
from agnosticfl.deploy.seeing.status import SERVER, Server, read
from agnosticfl.errors import BadInput, choose
from agnosticfl.files import finite

MOST = 10 * 2**20  # bytes of a log
KEPT = 5  # logs before it: FILE.1 is the newest
FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """A line of the log as one JSON object: time, level, message, and the line's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(record.args) if isinstance(record.args, Mapping) else {}
        fields.pop("node", None)  # the client has a name
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(finite(line), allow_nan=False, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """A line of the log as a person reads it, with the same time as in JSON: UTC."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


def log_file(path: Path, form: str) -> logging.Handler:
    """A log that is put away when it is long."""
    choose(form, FORMATS, "form of the log")
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=MOST, backupCount=KEPT, encoding="utf-8"
    )
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    return handler


class Named(logging.Filter):
    """Puts the names of clients, as `deploy server` knows them, in place of their numbers."""

    def __init__(self, state: Path):
        super().__init__()
        self._state, self._kept = state, FileCache[dict[int, str]]()

    def filter(self, record: logging.LogRecord) -> bool:
        fields = record.args
        if isinstance(fields, Mapping) and "node" in fields:
            name = self._names().get(fields["node"])  # type: ignore[arg-type]
            record.args = {**fields, "client": name} if name else fields
        return True

    def _names(self) -> dict[int, str]:
        return self._kept.get("names", [self._state / SERVER], self._read)

    def _read(self) -> dict[int, str]:
        try:
            server = read(self._state, SERVER, Server)
        except BadInput:
            server = None
        return {int(client.node): client.name for client in (server.clients if server else ())}


def put_away(log: Path) -> None:
    """Empties the log of a process that has it open, if it is long; what was in it is kept.

    The process appends, so it goes on at the beginning. What it says in between is lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size <= MOST:
            return
        for number in range(KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                _before(log, number).replace(_before(log, number + 1))
        shutil.copy2(log, _before(log, 1))
        os.truncate(log, 0)


def _before(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
