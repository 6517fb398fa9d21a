# SPDX-License-Identifier: Apache-2.0
"""Reads TensorFlow Federated's HDF5 files: examples/<client id>/<feature>."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agnosticfl.data.formats.limits import MAX_CLIENT_BYTES, reason, short
from agnosticfl.errors import BadInput, check, require

MAGIC = b"\x89HDF\r\n\x1a\n"
# What h5py raises for damaged files depends on where the damage is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


def clients(path: Path, features: tuple[str, ...]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each client's id and its `features`, in the order of their names."""
    h5py = require("h5py", "reading HDF5")
    place = str(path)
    try:
        with h5py.File(path, "r") as file:
            check("examples" in file, f"{path}: no group 'examples'; this is no HDF5 file of TFF")
            for client_id, group in file["examples"].items():
                place = f"{path}: client {short(client_id)}"
                check(isinstance(client_id, str), f"{place}: its name is no UTF-8 text")
                yield client_id, {name: _feature(group, name, place) for name in features}
    except BadInput:
        raise
    except _DAMAGE as error:
        raise BadInput(f"{place}: damaged HDF5 file ({reason(error)})") from error


def _feature(group: Any, name: str, place: str) -> np.ndarray:
    check(name in group, f"{place}: no data set {name!r}")
    size = group[name].nbytes
    check(size <= MAX_CLIENT_BYTES, f"{place}: {name!r} would take {size} bytes")
    return np.asarray(group[name][()])
