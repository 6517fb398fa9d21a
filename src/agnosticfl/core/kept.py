# SPDX-License-Identifier: Apache-2.0
"""Files of a cache that hold Python's own objects: read only if whole and nobody else's.

Whatever is wrong with such a file, it is as if it were not there.
"""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST = 1024  # files are kept in a folder; the ones longest unused go
OTHERS = 0o022  # of a file's mode: somebody else may write it


def read(file: Path) -> Any:
    """What is in a file; None if it is not there, not whole, or might be somebody else's."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & OTHERS:
                return None
            digest, content = opened.read(32), opened.read()
        if hashlib.sha256(content).digest() != digest:
            return None
        os.utime(file)  # it was used
        return pickle.loads(content)  # this user's own, as was just seen
    except Exception:  # a pickle can go wrong in any way
        return None


def write(file: Path, make: Callable[[], Any]) -> None:
    """Writes what `make` gives, whole or not at all; nothing if that goes wrong."""
    try:
        content = pickle.dumps(make())
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two processes may write at a time: each has a file of its own, which nobody else may read.
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as opened:
            opened.write(hashlib.sha256(content).digest() + content)
        Path(opened.name).replace(file)
        files = sorted(file.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in files[:-MOST]:
            old.unlink(missing_ok=True)
    except Exception:  # no room, or what cannot be kept
        return
