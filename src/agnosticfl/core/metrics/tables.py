# SPDX-License-Identifier: Apache-2.0
"""Tables of counts that add up over clients, and what they say of metrics that are no means.

Whoever has the sum of such tables needs no single output of a model. What is counted by class, and
how far probabilities are off in each bin, tells its metrics exactly. Scores are counted in bins:
the order of two examples in one bin is lost, and each metric says how far off that can make it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CALIBRATION_BINS = 15
SCORE_BINS = 256
# Bins have the same width in asinh(64 s), where s are log-odds less those of a model that does not
# know (1 in K): 0.001 wide around s = 0, and beyond 7 % of s.
FINEST, LARGEST = 64.0, 64.0


class Told(NamedTuple):
    """What a table says of a metric."""

    value: float | None
    within: float = 0.0  # the metric of the outputs themselves is not farther away than that


class Table(NamedTuple):
    """What is added up over the examples of a classifier with K classes."""

    name: str
    shape: Callable[[int], tuple[int, ...]]  # of K
    add_up: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (logits, label, weight)
    whole: bool  # whether its numbers are whole ones, from 0 on
    wrong: Callable[[np.ndarray, float], bool]  # whether so many examples cannot add up to it


class Summed(NamedTuple):
    """How a metric follows from a table."""

    table: Table
    tell: Callable[[np.ndarray, float], Told]  # (the table, how many examples it is of)


def log_odds(logits: np.ndarray) -> np.ndarray:
    """log(p_k / (1 − p_k)) of each class, [n, K].

    In the order of the probabilities, but without the ties that there are where those round to 1.
    """
    if logits.shape[1] == 2:
        difference = logits[:, 1] - logits[:, 0]
        return np.stack([-difference, difference], axis=1)
    rows, best = np.arange(len(logits)), logits.argmax(axis=1)
    below = logits - logits.max(axis=1, keepdims=True)
    odds = np.exp(below)
    odds[rows, best] = 0
    others = odds.sum(axis=1)
    rest = 1 + others[:, None] - odds  # of all other classes, in units of the best one's
    rest[rows, best] = others
    return below - np.log(rest)


def against_rest(number: int) -> range:
    """The classes that are told from the others: of two the second one, else each."""
    return range(1, 2) if number == 2 else range(number)


def _by_class(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
    said, number = logits.argmax(axis=1), logits.shape[1]
    return np.stack(
        [
            np.bincount(label, weight * (said == label), number),
            np.bincount(label, weight, number),
            np.bincount(said, weight, number),
        ]
    )


def _wrong_by_class(table: np.ndarray, examples: float) -> bool:
    right, there, said = table
    off = there.sum() != examples or said.sum() != examples
    return bool(off or (right > np.minimum(there, said)).any())


def _by_sureness(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
    sure = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    right = logits.argmax(axis=1) == label
    bins = CALIBRATION_BINS
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    return np.bincount(place, weight * (sure - right), bins)


def _wrong_by_sureness(table: np.ndarray, examples: float) -> bool:
    return bool(np.abs(table).sum() > examples)


def _score_bin(score: np.ndarray) -> np.ndarray:
    """The bin of each score, from 0 for the lowest."""
    reach = np.arcsinh(FINEST * LARGEST)
    place = (np.arcsinh(FINEST * score) / reach + 1) * SCORE_BINS / 2
    return np.clip(place, 0, SCORE_BINS - 1).astype(int)


def _by_score(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
    number = logits.shape[1]
    score = log_odds(logits) + np.log(number - 1)
    return np.stack(
        [
            [
                np.bincount(_score_bin(score[:, k]), weight * (group == (label == k)), SCORE_BINS)
                for group in (True, False)
            ]
            for k in against_rest(number)
        ]
    )


def _wrong_by_score(table: np.ndarray, examples: float) -> bool:
    return bool((table.sum(axis=(1, 2)) != examples).any())


CLASSES = Table(
    "classes",
    lambda number: (3, number),  # found, there, said to be there
    _by_class,
    whole=True,
    wrong=_wrong_by_class,
)
SURENESS = Table(
    "sureness",
    lambda _: (CALIBRATION_BINS,),  # Σ probability − Σ right
    _by_sureness,
    whole=False,
    wrong=_wrong_by_sureness,
)
SCORES = Table(
    "scores",
    lambda number: (len(against_rest(number)), 2, SCORE_BINS),  # positives, negatives
    _by_score,
    whole=True,
    wrong=_wrong_by_score,
)


def from_classes(tell: Callable[[np.ndarray], float | None]) -> Summed:
    """A metric that follows exactly from what is found, there and said to be there."""
    return Summed(CLASSES, lambda table, _: Told(tell(table)))


def from_scores(
    area: Callable[[np.ndarray, np.ndarray], float | None],
    off: Callable[[np.ndarray, np.ndarray], float],
) -> Summed:
    """A metric of positives and negatives in the order of their scores.

    Args:
      area: (positives, negatives), how many at each score, lowest first -> the metric.
      off: the same -> how far from it the metric is at most, if scores of one place differ.
    """

    def tell(table: np.ndarray, examples: float) -> Told:
        del examples
        used = [own[:, own.sum(axis=0) > 0] for own in table]
        with np.errstate(all="ignore"):
            areas = [(area(*own), own) for own in used]
            known = [(value, off(*own)) for value, own in areas if value is not None]
        if not known:
            return Told(None)
        values, errors = zip(*known, strict=True)
        return Told(sum(values) / len(known), sum(errors) / len(known))

    return Summed(SCORES, tell)
