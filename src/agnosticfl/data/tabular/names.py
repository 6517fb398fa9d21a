# SPDX-License-Identifier: Apache-2.0
"""What tells files apart, as a name for each."""

import re
from collections.abc import Sequence
from pathlib import Path

from agnosticfl.errors import check

ENDING = re.compile(r"(\.[A-Za-z]+)+$")
FILE, ROW = "@file", "@row"  # in place of a column: the name of the file, the row by itself


def file_names(paths: Sequence[Path]) -> list[str]:
    """processed.cleveland.data and processed.va.data are cleveland and va; one file is its stem."""
    check(len(set(paths)) == len(paths), "a file is given twice; its rows would be in two splits")
    own = len({path.name for path in paths}) == len(paths)
    names = [path.name if own else path.absolute().as_posix() for path in paths]
    parts = [re.findall(r"[^._/-]+|[._/-]", name) for name in names]
    parts = _without_common(_without_common(parts), last=True)
    short = ["".join(some).strip("._/-") for some in parts]
    fine = len(paths) > 1 and all(short) and len(set(short)) == len(short)
    return short if fine else [ENDING.sub("", name) for name in names]


def _without_common(parts: list[list[str]], last: bool = False) -> list[list[str]]:
    """The parts without those that all of them begin (or end) with; one each is left."""
    at = -1 if last else 0
    while min(map(len, parts)) > 1 and len({some[at] for some in parts}) == 1:
        parts = [some[:-1] if last else some[1:] for some in parts]
    return parts
