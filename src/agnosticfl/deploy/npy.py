# SPDX-License-Identifier: Apache-2.0
"""Arrays as they travel: numpy's own format, read strictly.

What a stranger sends is not given to `np.load`: that makes room for whatever size a header claims
before it looks for the numbers, opens archives, and takes either byte order.
"""

import math
import re

import numpy as np

from agnosticfl.errors import BadInput, check

# Version 1, of plain numbers, little-endian, in at most 32 dimensions.
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(<[fiu][248]|\|[iub]1)', 'fortran_order': (True|False),"
    rb" 'shape': \(((?:\d{1,18}, ?|\d{1,18}(?=\))){0,32})\), \} *\n",
    re.DOTALL,
)


def array_from(data: bytes) -> np.ndarray:
    """What numpy writes of an array of numbers, or `BadInput`."""
    found = HEADER.match(data)
    if found is None:
        raise BadInput("it is no array of little-endian numbers in numpy's format")
    kind, fortran, sizes = (part.decode() for part in found.groups())
    shape = tuple(int(number) for number in sizes.split(",") if number.strip())
    dtype, rest = np.dtype(kind), len(data) - found.end()
    # Beside a 0 other sizes could be any, beyond what numpy takes.
    fits = math.prod(shape) * dtype.itemsize == rest and math.prod(filter(None, shape)) < 2**48
    check(fits, f"it claims to be {kind} {shape} and has {rest} bytes")
    numbers = np.frombuffer(data, dtype, offset=found.end()).copy()  # one that can be written to
    return numbers.reshape(shape, order="F" if fortran == "True" else "C")
