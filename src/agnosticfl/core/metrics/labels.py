# SPDX-License-Identifier: Apache-2.0
"""Metrics of a classifier: logits [n, K] and labels [n]."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.core.metrics.base import Mean, exact_metric, metric

BINS = 15  # of the calibration error


@metric("accuracy", of="labels", higher_is_better=True)
def accuracy(logits: Array, label: Array) -> Mean:
    """Share of examples whose largest logit is that of the label."""
    correct = (jnp.argmax(logits, axis=-1) == label).astype(jnp.float32)
    return Mean(correct, jnp.ones_like(correct))


# From here on: from all outputs at once. With K = 2, what is said of one class is said of the
# second one, class 1; with more classes it is the mean over classes, each against the rest.


@exact_metric("auroc", of="labels", higher_is_better=True)
def auroc(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Area under the ROC curve: how often a positive example scores above a negative one.

    A tie counts half. More than two classes: the mean over those that some examples have and some
    have not.
    """
    return _one_against_rest(_area_under_roc, logits, label, weight)


@exact_metric("auprc", of="labels", higher_is_better=True)
def auprc(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Average precision, Σ (recall step × precision there): area under precision and recall.

    More than two classes: the mean over those that occur.
    """
    return _one_against_rest(_average_precision, logits, label, weight)


@exact_metric("recall", of="labels", higher_is_better=True)
def recall(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Share of a class's examples that are found: of class 1, or the mean over classes that occur.

    An example belongs to the class with its largest logit.
    """
    right, there, _ = _counts(logits, label, weight)
    return _mean_over(right, there) if len(there) != 2 else _ratio(right[1], there[1])


@exact_metric("f1", of="labels", higher_is_better=True)
def f1(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """2 × found / (there + said to be there): of class 1, or the mean over classes that occur."""
    right, there, said = _counts(logits, label, weight)
    if len(there) == 2:
        return _ratio(2 * right[1], there[1] + said[1])
    return _mean_over(2 * right[there > 0], (there + said)[there > 0])


@exact_metric("min_recall_precision", of="labels", higher_is_better=True)
def min_recall_precision(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """The lesser of recall and precision: found / max(there, said to be there).

    The score of PhysioNet's challenge of 2012 (event 1), min(sensitivity, positive predictivity),
    for whoever says the class with the largest logit: of class 1, or the mean over classes that
    occur.
    """
    right, there, said = _counts(logits, label, weight)
    if len(there) == 2:
        return _ratio(right[1], max(there[1], said[1]))
    return _mean_over(right[there > 0], np.maximum(there, said)[there > 0])


@exact_metric("break_even", of="labels", higher_is_better=True)
def break_even(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """Recall and precision where they are equal: as many are said to be positive as there are.

    The same score of the challenge at the cut-off at which neither of the two is traded for the
    other, whatever the probabilities are. Among examples of one score, positives are found in their
    share. More than two classes: the mean over those that occur.
    """
    return _one_against_rest(_break_even, logits, label, weight)


@exact_metric("balanced_accuracy", of="labels", higher_is_better=True)
def balanced_accuracy(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """The mean, over the classes that occur, of the share of their examples that are found."""
    right, there, _ = _counts(logits, label, weight)
    return _mean_over(right, there)


@exact_metric("calibration_error", of="labels", higher_is_better=False)
def calibration_error(logits: np.ndarray, label: np.ndarray, weight: np.ndarray) -> float | None:
    """How far the chosen class's probability is from how often it is right, in 15 equal bins.

    The expected calibration error: Σ_bins (share of examples) × |mean probability − share right|.
    """
    sure = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    right = logits.argmax(axis=1) == label
    place = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
    gap = np.bincount(place, weight * (sure - right))  # Σ probability − Σ right, of each bin
    return float(np.abs(gap).sum() / weight.sum())


def _one_against_rest(
    area: Callable[[np.ndarray, np.ndarray], float | None],
    logits: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray,
) -> float | None:
    score, number = log_odds(logits), logits.shape[1]
    classes = (1,) if number == 2 else range(number)
    areas = [area(*_by_score(score[:, k], label == k, weight)) for k in classes]
    known = [value for value in areas if value is not None]
    return sum(known) / len(known) if known else None


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


def _by_score(
    score: np.ndarray, positive: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many positives and negatives there are at each score, lowest first."""
    distinct, place = np.unique(score, return_inverse=True)
    count = partial(np.bincount, place, minlength=len(distinct))
    return count(weights=weight * positive), count(weights=weight * ~positive)


def _area_under_roc(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    below = np.cumsum(negatives) - negatives
    return _ratio(np.sum(positives * (below + negatives / 2)), positives.sum() * negatives.sum())


def _average_precision(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    found = np.cumsum(positives[::-1])
    precision = found / np.cumsum((positives + negatives)[::-1])
    return _ratio(np.sum(positives[::-1] * precision), positives.sum())


def _break_even(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    there = positives.sum()
    said = np.cumsum([0, *(positives + negatives)[::-1]])
    found = np.cumsum([0, *positives[::-1]])
    return _ratio(np.interp(there, said, found), there)


def _counts(
    logits: np.ndarray, label: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each class: how many examples are found, are there, are said to be there."""
    said = logits.argmax(axis=1)
    count = partial(np.bincount, minlength=logits.shape[1])
    return (
        count(label, weights=weight * (said == label)),
        count(label, weights=weight),
        count(said, weights=weight),
    )


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _mean_over(part: np.ndarray, whole: np.ndarray) -> float:
    """The mean of part / whole, where there is a whole."""
    return float(np.mean(part[whole > 0] / whole[whole > 0]))
