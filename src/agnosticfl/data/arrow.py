# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays over memory that is there already."""

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from agnosticfl.data.source import Feature
from agnosticfl.errors import BadInput

pc: Any = pyarrow.compute  # its functions are made when it is imported: no type checker knows them


def arrow_type(feature: Feature) -> Any:
    """How a feature is stored: a number, or a list of as many numbers as its shape has."""
    item = pa.from_numpy_dtype(np.dtype(feature.dtype))
    return pa.list_(item, math.prod(feature.shape)) if feature.shape else item


def mapped(file: Path) -> mmap.mmap:
    """The bytes of a file as memory, read from the disc when they are touched."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be mapped into memory: {error}") from None


def array_over(kind: Any, length: int, *buffers: Any) -> Any:
    """An Arrow array without nulls over existing memory."""
    return pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, buffers)])
