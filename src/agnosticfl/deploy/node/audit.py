# SPDX-License-Identifier: Apache-2.0
"""A client's own record of what it was asked and what left it: a line of JSON for each message.

Lines are only ever added, and are on the disc before an answer leaves; what cannot be written down
does not leave. Only its owner reads the file. There is no example in it, nor what a message said:
of what left, its size and its digest stand there.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from agnosticfl.files import finite, sync

FILE = "audit.jsonl"  # in a client's state folder


def note(path: Path, entry: dict[str, Any]) -> None:
    """Adds a line, with the time before all else."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line = json.dumps(finite({"time": now, **entry}), allow_nan=False, ensure_ascii=False)
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        content = f"{line}\n".encode()
        written = os.write(descriptor, content)
        if written != len(content):
            raise OSError(f"{path}: a line could not be written whole; is the disc full?")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync(path.parent)
