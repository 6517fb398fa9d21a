# SPDX-License-Identifier: Apache-2.0
"""Reads LEAF's JSON files: {"users": …, "num_samples": …, "user_data": {user: {"x": …, "y": …}}}.

A file is over 100 MB of text for a hundred users, so it is parsed as a stream that holds one user
at a time: with ijson a file of 137 MB took 57 MiB of memory instead of json.load's 854 MiB, and
7.1 s instead of 6.0 s.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agnosticfl.data.formats.files import reading
from agnosticfl.data.formats.limits import reason, short
from agnosticfl.errors import BadInput, check, require


def clients(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each user's id and arrays "x" and "y", in the order of the file."""
    ijson = require("ijson", "reading LEAF's JSON")
    place = str(path)
    try:
        with reading(path), path.open("rb") as file:
            for user, data in ijson.kvitems(file, "user_data", use_float=True):
                place = f"{path}: user {short(user)}"
                good = isinstance(data, dict) and {"x", "y"} <= data.keys()
                check(good, f"{place}: no lists 'x' and 'y'")
                yield user, {name: _array(data[name], name, place) for name in ("x", "y")}
    except (ijson.JSONError, UnicodeDecodeError) as error:
        raise BadInput(f"{place}: malformed JSON at or after this ({reason(error)})") from error


def _array(values: Any, name: str, place: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{place}: the rows of {name!r} differ in length") from error
