# SPDX-License-Identifier: Apache-2.0
"""Metrics from all outputs at once: by hand, by SciPy, by counting pairs, and with weights."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agnosticfl.core.metrics import (
    Metric,
    auprc,
    auroc,
    balanced_accuracy,
    break_even,
    c_index,
    calibration_error,
    exact_metric,
    f1,
    mae,
    min_recall_precision,
    named_metrics,
    r2,
    reading,
    recall,
    rmse,
)
from agnosticfl.core.metrics.tables import log_odds
from agnosticfl.errors import BadInput
from agnosticfl.registry import METRICS

EXACT = [entry for name in METRICS.names() if (entry := METRICS.get(name)).exact]
# Those that only count, so that a weight is a repetition to the last bit.
COUNTING = (auroc, auprc, f1, recall, balanced_accuracy, min_recall_precision, c_index)


def once(metric: Metric, outputs: object, wanted: object) -> float | None:
    outputs, wanted = np.array(outputs, float), np.array(wanted)
    return metric(outputs, wanted, np.ones(len(wanted)))


def two(scores: list[float]) -> np.ndarray:
    """Logits 0 and score."""
    return np.stack([np.zeros(len(scores)), scores], axis=1)


def sure(probabilities: list[float]) -> np.ndarray:
    """Logits whose softmax gives class 1 this probability."""
    return two([math.log(p / (1 - p)) for p in probabilities])


# Scores of class 1, best first: + − + = −, the last two tied.
SCORES, LABELS = [3.0, 2.0, 1.0, 1.0], [1, 0, 1, 0]
# Chosen: 1 1 1 0 against 1 0 0 0, and class by class 0 1 2 2 against 0 1 1 2.
CHOSEN_2, LABELS_2 = two([1.0, 1.0, 1.0, -1.0]), [1, 0, 0, 0]
CHOSEN_3, LABELS_3 = np.eye(4)[[0, 1, 2, 2]], [0, 1, 1, 2]  # of class 3 there is no example


@pytest.mark.parametrize(
    ("metric", "outputs", "wanted", "expected"),
    [
        # Pairs: 3 above both negatives, the positive 1 below 2 and tied with 1.
        (auroc, two(SCORES), LABELS, (1 + 1 + 0 + 1 / 2) / 4),
        # Recall goes up by 1/2 at 3 (precision 1) and by 1/2 at 1 (two of four).
        (auprc, two(SCORES), LABELS, 1 / 2 * 1 + 1 / 2 * 2 / 4),
        (recall, CHOSEN_2, LABELS_2, 1 / 1),
        (f1, CHOSEN_2, LABELS_2, 2 * 1 / (1 + 3)),
        (balanced_accuracy, CHOSEN_2, LABELS_2, (1 / 3 + 1 / 1) / 2),
        # One of one is found, and three are said to be there; the other way round, one of two.
        (min_recall_precision, CHOSEN_2, LABELS_2, min(1 / 1, 1 / 3)),
        (min_recall_precision, two([1.0, -1.0, -1.0]), [1, 1, 0], min(1 / 2, 1 / 1)),
        # Class 1: one of two found, and nothing else said; class 2: found, but said twice.
        (min_recall_precision, CHOSEN_3, LABELS_3, (1 / 1 + 1 / 2 + 1 / 2) / 3),
        # Two positives. The best two are + and −; had 1, 1 been the best, half of them would be.
        (break_even, two(SCORES), LABELS, 1 / 2),
        (break_even, two([3.0, 1.0, 1.0, 0.0]), [1, 1, 0, 0], (1 + 1 / 2) / 2),
        (break_even, two([3.0, 2.0, 1.0]), [0, 0, 1], 0.0),
        (recall, CHOSEN_3, LABELS_3, (1 / 1 + 1 / 2 + 1 / 1) / 3),
        (f1, CHOSEN_3, LABELS_3, (2 / (1 + 1) + 2 / (2 + 1) + 2 / (1 + 2)) / 3),
        (balanced_accuracy, CHOSEN_3, LABELS_3, (1 / 1 + 1 / 2 + 1 / 1) / 3),
        # One bin holds 0.62 and 0.64, half of them right; another 0.9, right; another 0.8, wrong.
        (
            calibration_error,
            sure([0.62, 0.64, 0.9, 0.2]),
            [1, 0, 1, 1],
            2 / 4 * abs(0.63 - 1 / 2) + 1 / 4 * abs(0.9 - 1) + 1 / 4 * abs(0.8 - 0),
        ),
        # mean 3: 1 − (1 + 0 + 1) / (4 + 0 + 4)
        (r2, [2.0, 3.0, 4.0], [1.0, 3.0, 5.0], 1 - (1 + 0 + 1) / (4 + 0 + 4)),
        (r2, [3.0, 3.0, 3.0], [1.0, 3.0, 5.0], 0.0),
        # Pairs 1-2 right, 1-3 tied, 2-3 wrong.
        (c_index, [1.0, 2.0, 1.0], [10.0, 20.0, 30.0], (1 + 1 / 2 + 0) / 3),
        # The second is censored, so it opens no pair: 1-2 right, 1-3 wrong.
        (c_index, [1.0, 2.0, 0.0], [[10.0, 1], [20.0, 0], [30.0, 1]], 1 / 2),
        # At equal times the censored one is the later one; two events cannot be compared.
        (c_index, [1.0, 2.0, 3.0], [[10.0, 1], [10.0, 0], [10.0, 1]], (1 + 0) / 2),
    ],
)
def test_by_hand(metric: Metric, outputs: object, wanted: object, expected: float):
    assert once(metric, outputs, wanted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "outputs", "wanted"),
    [
        (auroc, two([1.0, 2.0]), [1, 1]),
        (auprc, two([1.0, 2.0]), [0, 0]),
        (recall, two([1.0, 2.0]), [0, 0]),
        (f1, two([-1.0, -2.0]), [0, 0]),
        (min_recall_precision, two([-1.0, -2.0]), [0, 0]),
        (break_even, two([1.0, 2.0]), [0, 0]),
        (r2, [1.0, 2.0], [0.1, 0.1]),
        (c_index, [1.0, 2.0], [5.0, 5.0]),
        (c_index, [1.0, 2.0], [[5.0, 0], [6.0, 1]]),
    ],
)
def test_what_is_undefined_is_none(metric: Metric, outputs: object, wanted: object):
    assert once(metric, outputs, wanted) is None


@pytest.mark.parametrize("metric", EXACT, ids=lambda metric: metric.name)
def test_without_examples_that_count_there_is_no_value(metric: Metric):
    outputs, wanted = example(metric, 3)
    assert metric(outputs, wanted, np.zeros(3)) is None


@pytest.mark.parametrize("metric", EXACT, ids=lambda metric: metric.name)
def test_nan_is_worse_than_any_number(metric: Metric):
    outputs, wanted = example(metric, 6)
    outputs[2] = np.nan
    worst = -math.inf if metric.reading.higher_is_better else math.inf
    assert metric(outputs, wanted, np.ones(6)) == worst
    value = metric(outputs, wanted, np.array([1, 1, 0, 1, 1, 1]))  # nobody asks for that one
    assert value is not None
    assert math.isfinite(value)


def example(metric: Metric, number: int) -> tuple[np.ndarray, np.ndarray]:
    if metric.of == "labels":
        return two(list(np.arange(float(number)))), np.arange(number) % 2
    return np.arange(float(number)), np.arange(float(number)) ** 2


def test_directions():
    higher = {metric.name for metric in EXACT if reading(metric.name).higher_is_better}
    assert higher == {metric.name for metric in EXACT} - {"calibration_error"}
    assert not reading("mae").higher_is_better
    assert not reading("rmse").higher_is_better


def test_sums_of_a_regression():
    total, weight = mae(np.array([1.0, 5.0]), np.array([2.0, 2.0]))
    np.testing.assert_array_equal(total, [1, 3])
    np.testing.assert_array_equal(weight, [1, 1])
    total, weight = rmse(np.array([1.0, 5.0]), np.array([2.0, 2.0]))
    np.testing.assert_array_equal(total, [1, 9])
    assert reading("rmse").finish(float(total.sum() / weight.sum())) == math.sqrt((1 + 9) / 2)


def test_auroc_is_the_u_statistic():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 20, 300).astype(float), rng.integers(0, 2, 300)
    u = scipy.stats.mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic
    expected = u / (labels == 1).sum() / (labels == 0).sum()
    assert once(auroc, two(list(scores)), labels) == pytest.approx(expected, rel=1e-12)


def test_c_index_is_somers_d():
    rng = np.random.default_rng(0)
    values, times = rng.integers(0, 9, (2, 300)).astype(float)
    d = scipy.stats.somersd(times, values).statistic  # (right − wrong) / pairs of different times
    assert once(c_index, values, times) == pytest.approx((1 + d) / 2, rel=1e-12)


@pytest.mark.parametrize("metric", [auroc, auprc])
def test_of_several_classes_each_is_held_against_the_rest(metric: Metric):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)  # nobody has class 3
    odds = log_odds(logits)
    ones = [once(metric, two(list(odds[:, k])), labels == k) for k in range(3)]
    assert once(metric, logits, labels) == pytest.approx(np.mean(np.array(ones, float)))


def test_log_odds_are_those_of_the_softmax_and_do_not_round():
    logits = np.random.default_rng(0).normal(size=(20, 5))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(log_odds(logits), np.log(p / (1 - p)), rtol=1e-12)
    # exp(−100) / 1 is 0 in the last digit of a probability.
    sure = log_odds(np.array([[100.0, 0.0, 0.0], [101.0, 0.0, 0.0]]))
    np.testing.assert_allclose(sure[:, 0], [100 - math.log(2), 101 - math.log(2)])


Function = Callable[[np.ndarray, np.ndarray], float | None]


def counted_pairs(values: np.ndarray, wanted: np.ndarray) -> float | None:
    """The concordance, pair by pair."""
    time, event = (wanted, np.ones(len(wanted))) if wanted.ndim == 1 else wanted.T
    right = pairs = 0.0
    for i, j in itertools.permutations(range(len(values)), 2):
        later = time[i] < time[j] or (time[i] == time[j] and not event[j])
        if event[i] and later:
            pairs += 1
            right += float(values[i] < values[j]) + float(values[i] == values[j]) / 2
    return right / pairs if pairs else None


rows = st.integers(1, 12)
few = st.integers(-3, 3).map(float)  # so that ties are many


@settings(max_examples=100)
@given(st.data())
def test_c_index_counts_pairs(data: st.DataObject):
    n = data.draw(rows)
    values, time = (
        data.draw(arrays(float, n, elements=few)),
        data.draw(arrays(float, n, elements=few)),
    )
    event = data.draw(arrays(int, n, elements=st.integers(0, 1)))
    assert once(c_index, values, time) == counted_pairs(values, time)
    both = np.stack([time, event], axis=1)
    assert once(c_index, values, both) == counted_pairs(values, both)


@settings(max_examples=60)
@pytest.mark.parametrize("metric", EXACT, ids=lambda metric: metric.name)
@given(data=st.data())
def test_a_weight_is_as_good_as_repeated_rows(metric: Metric, data: st.DataObject):
    n = data.draw(rows)
    if metric.of == "labels":
        classes = data.draw(st.integers(2, 4))
        outputs = data.draw(arrays(float, (n, classes), elements=few))
        wanted = data.draw(arrays(int, n, elements=st.integers(0, classes - 1)))
    else:
        outputs = data.draw(arrays(float, n, elements=few))
        wanted = data.draw(arrays(float, n, elements=few))
    weight = data.draw(arrays(int, n, elements=st.integers(0, 3)))
    found = metric(outputs, wanted, weight)
    repeated = np.repeat(outputs, weight, axis=0), np.repeat(wanted, weight)
    expected = metric(*repeated, np.ones(weight.sum()))
    if metric in COUNTING or expected is None:
        assert found == expected
    else:  # these add numbers that are not whole, in another order
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_metric_of_one_s_own_from_all_outputs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(METRICS, "_known", dict(METRICS._known))  # nobody else shall find it

    @exact_metric("highest_value", of="values", higher_is_better=True)
    def highest_value(values: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> float:
        """The largest output."""
        assert len(values) == len(wanted) == len(weight)
        return float(values.max())

    assert named_metrics(["highest_value"], "values") == {"highest_value": highest_value}
    assert highest_value(np.array([1.0, 9.0]), np.zeros(2), np.array([1, 0])) == 1
    with pytest.raises(BadInput, match="metric 'highest_value' is one of values; the model has"):
        named_metrics(["highest_value"], "labels")
    with pytest.raises(BadInput, match="kind of metric 'colour' 'colours'"):
        exact_metric("colour", of="colours", higher_is_better=True)(lambda *_: None)  # pyright: ignore[reportArgumentType]


def test_targets_of_another_shape_are_refused():
    with pytest.raises(BadInput, match=r"c_index needs a time, or a time and an event, not \[3\]"):
        once(c_index, [1.0], [[1.0, 2.0, 3.0]])
    with pytest.raises(BadInput, match=r"r2 needs one number an example, not \[2\]"):
        once(r2, [1.0], [[1.0, 2.0]])
