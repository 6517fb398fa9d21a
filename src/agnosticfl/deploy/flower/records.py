# SPDX-License-Identifier: Apache-2.0
"""Flower's records, as both sides of the federation use them."""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

from agnosticfl.deploy.npy import array_from

ROUND = "round"  # which attempt at which round a message belongs to
ARRAYS = "arrays"  # w, α and the state of the channel
SUM = "sum"  # what a client adds to the sum: one vector, as `wire.pack` makes it
DECLINED = "declined"  # instead of an answer, from a client that does not take part
OVER = "over"  # that the run has ended, and how
SECURE, REQUEST = "secure", "message"  # the bytes of a message of a secure round
AHEAD = "ahead"  # beside it: those of a message of the next round, or why there is no answer to it


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Arrays by name, as they travel."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def to_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The inverse of `to_record`, or `BadInput`."""
    return {name: array_from(array.data) for name, array in record.items()}
