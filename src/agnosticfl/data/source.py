# SPDX-License-Identifier: Apache-2.0
"""What a loader gives: examples in the order of their file, with client, domain and split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agnosticfl.data.preparation.record import Preparation

SPLITS = ("train", "heldout", "test")


class Rows(NamedTuple):
    """A piece of a source: n examples of one split, small enough for memory."""

    split: str  # one of SPLITS
    clients: Sequence[str]  # [n] whom each example belongs to
    domain: np.ndarray  # [n] int32, in 0 … p−1
    features: Mapping[str, np.ndarray]  # name -> [n, ...]


class Feature(NamedTuple):
    """The type of one feature of an example."""

    dtype: str  # a numpy name: uint8, int16, int32, float32
    shape: tuple[int, ...]  # of one example


class Source(NamedTuple):
    """Everything a store is made from. `rows()` may be called again for a second pass."""

    name: str
    licence: str
    domains: tuple[str, ...]
    features: Mapping[str, Feature]
    rows: Callable[[], Iterator[Rows]]
    total: int | None = None  # examples, if known beforehand (for the progress bar)
    vocabulary: tuple[str, ...] | None = None  # text: word of each token id
    # What was left out and why (reason -> number); filled while rows() runs.
    left_out: Mapping[str, int] = {}
    labels: tuple[str, ...] | None = None  # the name of each label number, where labels had names
    preparation: Preparation | None = None  # how raw rows became features, where they were raw
    notes: tuple[str, ...] = ()  # what a person should know before trusting the data
    given: tuple[str, ...] = ()  # of vocabulary and preparation: not learnt from training rows
