# SPDX-License-Identifier: Apache-2.0
"""Files that are either there whole or not at all."""

import json
import math
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Replaces `path` in one step, so that a crash leaves the old file or the new one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """The same for what is no text.

    Args:
      mode: who may read and write a new file, as far as the process lets them.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON."""
    text = json.dumps(finite(value), indent=2, allow_nan=False, ensure_ascii=False)
    write_whole(path, text + "\n")


def finite(value: Any) -> Any:
    """`value` with null in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sync(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disc, safe from a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
