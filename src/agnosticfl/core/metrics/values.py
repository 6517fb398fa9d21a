# SPDX-License-Identifier: Apache-2.0
"""Metrics of a regression: numbers [n] and what they should have been, [n]."""

import math

import numpy as np

from agnosticfl.core.lazy_jax import Array, numpy_of
from agnosticfl.core.metrics.base import Mean, exact_metric, metric
from agnosticfl.errors import check


@metric("mae", of="values", higher_is_better=False)
def mae(values: Array, wanted: Array) -> Mean:
    """The mean absolute error, |ŷ − y|."""
    return _mean(abs(values - wanted))


@metric("rmse", of="values", higher_is_better=False, finish=math.sqrt)
def rmse(values: Array, wanted: Array) -> Mean:
    """The square root of the mean of (ŷ − y)²."""
    return _mean(numpy_of(values).square(values - wanted))


@exact_metric("r2", of="values", higher_is_better=True)
def r2(values: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> float | None:
    """R² = 1 − Σ (ŷ − y)² / Σ (y − mean of y)²; undefined if all y are the same."""
    check(wanted.ndim == 1, f"r2 needs one number an example, not {list(wanted.shape[1:])}")
    if wanted.min() == wanted.max():
        return None
    wanted = wanted.astype(np.float64)
    mean = np.average(wanted, weights=weight)
    spread = np.sum(weight * np.square(wanted - mean))
    return float(1 - np.sum(weight * np.square(values - wanted)) / spread)


@exact_metric("c_index", of="values", higher_is_better=True)
def c_index(values: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> float | None:
    """Concordance: how often the larger output has the larger target, a tied output counting half.

    A higher output means a LONGER time; of a risk, give the negative. Where `wanted` is [n, 2], it
    is time and event (0 if only known to be later: censored). A pair can then be compared if the
    earlier of the two is an event; at equal times, a censored one is the later one.
    """
    check(
        wanted.ndim == 1 or wanted.shape[1:] == (2,),
        f"c_index needs a time, or a time and an event, not {list(wanted.shape[1:])}",
    )
    time, event = (wanted, np.ones(len(wanted))) if wanted.ndim == 1 else wanted.T
    when = 2 * _rank(time) + (event == 0)
    opens = weight * (event != 0)  # who can be the earlier one of a pair
    pairs = _pairs(np.zeros_like(when), when, opens, weight)
    if not pairs > 0:
        return None
    ties = _pairs(_rank(values), when, opens, weight)
    return float((_concordant(values, when, opens, weight) + ties / 2) / pairs)


def _mean(errors: Array) -> Mean:
    return Mean(errors, numpy_of(errors).ones_like(errors))


def _rank(numbers: np.ndarray) -> np.ndarray:
    """0 for the smallest; the same for equal ones."""
    return np.unique(numbers, return_inverse=True)[1]


def _pairs(group: np.ndarray, when: np.ndarray, opens: np.ndarray, weight: np.ndarray) -> float:
    """Σ opens_i weight_j over the pairs of one group with when_i < when_j."""
    width = int(when.max()) + 1
    cells, place = np.unique(group * width + when, return_inverse=True)
    until = np.cumsum(np.bincount(place, weight))
    last = np.searchsorted(cells // width, cells // width, side="right") - 1  # of the cell's group
    return float(np.sum(np.bincount(place, opens) * (until[last] - until)))


def _concordant(
    values: np.ndarray, when: np.ndarray, opens: np.ndarray, weight: np.ndarray
) -> float:
    """Σ opens_i weight_j over the pairs with when_i < when_j and values_i < values_j.

    Time is halved again and again, and the pairs with one in each half are counted, for all parts
    at once: n log n steps and memory for n. Who has the same time stands in falling order of
    values, and who has the same value in falling order of time, so that no tie is counted.
    """
    in_time = np.lexsort((-values, when))
    place = np.empty_like(in_time)
    place[in_time] = np.arange(len(values))
    size = 1 << (len(values) - 1).bit_length()
    padding = size - len(values)  # places at the end whom nobody has, and who count 0
    opens, weight = (np.pad(array[in_time], (0, padding)) for array in (opens, weight))
    # The places of each part, in rising order of values.
    row = np.concatenate([place[np.lexsort((-place, values))], np.arange(len(values), size)])
    total = 0.0
    while size > 1:
        size //= 2
        late = row & size != 0
        later = np.where(late, weight[row], 0).reshape(-1, 2 * size)
        above = later.sum(axis=1, keepdims=True) - np.cumsum(later, axis=1)
        total += float(np.sum(np.where(late, 0, opens[row]) * above.ravel()))
        row = np.stack([row[half].reshape(-1, size) for half in (~late, late)], axis=1).ravel()
    return total
