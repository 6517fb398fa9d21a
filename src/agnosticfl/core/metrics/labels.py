# SPDX-License-Identifier: Apache-2.0
"""Metrics of a classifier: logits [n, K] and labels [n]."""

from collections.abc import Callable
from functools import partial

import numpy as np

from agnosticfl.core.lazy_jax import Array, numpy_of
from agnosticfl.core.metrics.base import Mean, exact_metric, metric
from agnosticfl.core.metrics.tables import (
    CLASSES,
    SURENESS,
    Summed,
    Told,
    against_rest,
    from_classes,
    from_scores,
    log_odds,
)


@metric("accuracy", of="labels", higher_is_better=True)
def accuracy(logits: Array, label: Array) -> Mean:
    """Share of examples whose largest logit is that of the label."""
    numbers = numpy_of(logits)
    correct = (numbers.argmax(logits, axis=-1) == label).astype(np.float32)
    return Mean(correct, numbers.ones_like(correct))


def _area_under_roc(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    below = np.cumsum(negatives) - negatives
    return _ratio(np.sum(positives * (below + negatives / 2)), positives.sum() * negatives.sum())


def _roc_off(positives: np.ndarray, negatives: np.ndarray) -> float:
    """A pair in one place counts half, and is 0 or 1."""
    return float(np.sum(positives * negatives) / 2 / (positives.sum() * negatives.sum()))


def _average_precision(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    found = np.cumsum(positives[::-1])
    precision = found / np.cumsum((positives + negatives)[::-1])
    return _ratio(np.sum(positives[::-1] * precision), positives.sum())


def _precision_off(positives: np.ndarray, negatives: np.ndarray) -> float:
    """The precision where a positive of a place is found: all, or none, of its negatives before."""
    own, others = positives[::-1], negatives[::-1]
    found, all_of_them = np.cumsum(own), np.cumsum(own + others)
    usual, before = found / all_of_them, all_of_them - own - others
    highest = found / (before + own)
    lowest = (found - own + 1) / (before + others + 1)
    off = np.maximum(highest - usual, usual - lowest)
    return float(np.sum((own * off)[own > 0]) / own.sum())


def _break_even(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    there = positives.sum()
    said = np.cumsum([0, *(positives + negatives)[::-1]])
    found = np.cumsum([0, *positives[::-1]])
    return _ratio(np.interp(there, said, found), there)


def _break_even_off(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Those of the place of the cut-off that are above it may all be positives, or negatives."""
    own, both, there = positives[::-1], (positives + negatives)[::-1], positives.sum()
    cut = int(np.searchsorted(np.cumsum(both), there))
    wanted = there - np.cumsum(both)[cut] + both[cut]
    usual = wanted * own[cut] / both[cut]
    highest = min(own[cut], wanted)
    lowest = max(0, wanted - (both[cut] - own[cut]))
    return float(max(highest - usual, usual - lowest) / there)


def _recall(counts: np.ndarray) -> float | None:
    right, there, _ = counts
    return _mean_over(right, there) if len(there) != 2 else _ratio(right[1], there[1])


def _f1(counts: np.ndarray) -> float | None:
    right, there, said = counts
    if len(there) == 2:
        return _ratio(2 * right[1], there[1] + said[1])
    return _mean_over(2 * right[there > 0], (there + said)[there > 0])


def _lesser(counts: np.ndarray) -> float | None:
    right, there, said = counts
    if len(there) == 2:
        return _ratio(right[1], max(there[1], said[1]))
    return _mean_over(right[there > 0], np.maximum(there, said)[there > 0])


def _balanced(counts: np.ndarray) -> float | None:
    right, there, _ = counts
    return _mean_over(right, there)


def _off_balance(gap: np.ndarray, examples: float) -> float:
    return float(np.abs(gap).sum() / examples)


# From here on: from all outputs at once. With K = 2, what is said of one class is said of the
# second one, class 1; with more classes it is the mean over classes, each against the rest.


@exact_metric(
    "auroc",
    of="labels",
    higher_is_better=True,
    summed=from_scores(_area_under_roc, _roc_off),
)
def auroc(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Area under the ROC curve: how often a positive example scores above a negative one.

    A tie counts half. More than two classes: the mean over those that some examples have and some
    have not.
    """
    return _one_against_rest(_area_under_roc, logits, label, weight)


@exact_metric(
    "auprc",
    of="labels",
    higher_is_better=True,
    summed=from_scores(_average_precision, _precision_off),
)
def auprc(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Average precision, Σ (recall step × precision there): area under precision and recall.

    More than two classes: the mean over those that occur.
    """
    return _one_against_rest(_average_precision, logits, label, weight)


@exact_metric(
    "recall",
    of="labels",
    higher_is_better=True,
    summed=from_classes(_recall),
)
def recall(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Share of a class's examples that are found: of class 1, or the mean over classes that occur.

    An example belongs to the class with its largest logit.
    """
    return _recall(CLASSES.add_up(logits, label, weight))


@exact_metric(
    "f1",
    of="labels",
    higher_is_better=True,
    summed=from_classes(_f1),
)
def f1(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """2 × found / (there + said to be there): of class 1, or the mean over classes that occur."""
    return _f1(CLASSES.add_up(logits, label, weight))


@exact_metric(
    "min_recall_precision",
    of="labels",
    higher_is_better=True,
    summed=from_classes(_lesser),
)
def min_recall_precision(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """The lesser of recall and precision: found / max(there, said to be there).

    The score of PhysioNet's challenge of 2012 (event 1), min(sensitivity, positive predictivity),
    for whoever says the class with the largest logit: of class 1, or the mean over classes that
    occur.
    """
    return _lesser(CLASSES.add_up(logits, label, weight))


@exact_metric(
    "break_even",
    of="labels",
    higher_is_better=True,
    summed=from_scores(_break_even, _break_even_off),
)
def break_even(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Recall and precision where they are equal: as many are said to be positive as there are.

    The same score of the challenge at the cut-off at which neither of the two is traded for the
    other, whatever the probabilities are. Among examples of one score, positives are found in their
    share. More than two classes: the mean over those that occur.
    """
    return _one_against_rest(_break_even, logits, label, weight)


@exact_metric(
    "balanced_accuracy",
    of="labels",
    higher_is_better=True,
    summed=from_classes(_balanced),
)
def balanced_accuracy(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """The mean, over the classes that occur, of the share of their examples that are found."""
    return _balanced(CLASSES.add_up(logits, label, weight))


@exact_metric(
    "calibration_error",
    of="labels",
    higher_is_better=False,
    summed=Summed(SURENESS, lambda gap, examples: Told(_off_balance(gap, examples))),
)
def calibration_error(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """How far the chosen class's probability is from how often it is right, in 15 equal bins.

    The expected calibration error: Σ_bins (share of examples) × |mean probability − share right|.
    """
    return _off_balance(SURENESS.add_up(logits, label, weight), float(weight.sum()))


def _one_against_rest(
    area: Callable[[np.ndarray, np.ndarray], float | None],
    logits: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray,
) -> float | None:
    score, number = log_odds(logits), logits.shape[1]
    classes = against_rest(number)
    areas = [area(*_by_score(score[:, k], label == k, weight)) for k in classes]
    known = [value for value in areas if value is not None]
    return sum(known) / len(known) if known else None


def _by_score(
    score: np.ndarray, positive: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives there are at each score, lowest first."""
    distinct, place = np.unique(score, return_inverse=True)
    count = partial(np.bincount, place, minlength=len(distinct))
    return count(weights=weight * positive), count(weights=weight * ~positive)


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _mean_over(part: np.ndarray, whole: np.ndarray) -> float:
    """The mean of part / whole, where there is a whole."""
    return float(np.mean(part[whole > 0] / whole[whole > 0]))
