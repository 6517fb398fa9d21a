# SPDX-License-Identifier: Apache-2.0
"""What a metric is: sums over examples that are divided once, or a number from all outputs."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.core.lazy_jax import Array
from agnosticfl.core.metrics.tables import Summed
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.registry import METRICS

Outputs: TypeAlias = Literal["labels", "values", "tokens"]  # what a model's outputs say
SHAPES: dict[Outputs, str] = {"labels": "[n, K]", "values": "[n]", "tokens": "[n, T, K + 4]"}

# (outputs, wanted, weight) -> value, or None where it is undefined; all in float64. `weight`, [n],
# counts an example so many times, as if its row were there as often.
ExactFunction: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], float | None]


class Mean(NamedTuple):
    """A mean before the division: Σ total / Σ weight over the examples that count."""

    total: Array  # [n]
    weight: Array  # [n]; 1 for a mean over examples, tokens for a mean over tokens


class Reading(NamedTuple):
    """How the numbers of a metric are read."""

    higher_is_better: bool
    finish: Callable[[float], float] = float  # what is done to the mean, after the division


LOSS = Reading(higher_is_better=False)


class Metric(NamedTuple):
    """What is measured of a model's outputs and what they should have been.

    One of `measure` and `exact` is there. Sums can be added over batches, clients and processes;
    what cannot be made of them is computed from all outputs at once, at the end.
    """

    name: str
    of: Outputs  # "labels": logits [n, K]; "values": [n]; "tokens": logits [n, T, K + 4]
    reading: Reading
    measure: Callable[[Array, Array], Mean] | None = None
    exact: ExactFunction | None = None
    summed: Summed | None = None  # how an exact one follows from sums over examples, if it does

    @property
    def function(self) -> Callable[..., Any]:
        """The one that measures."""
        function = self.measure or self.exact
        assert function is not None
        return function

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)


def metric(
    name: str,
    *,
    of: Outputs,
    higher_is_better: bool,
    finish: Callable[[float], float] = float,
) -> Callable[[Callable[[Array, Array], Mean]], Metric]:
    """Enters a metric, measured example by example by the function that follows.

    Args:
      name: as tasks, results and tables have it.
      of: `"labels"`, `"values"` or `"tokens"`: which outputs the function compares.
      higher_is_better: which way is better: whoever calls a domain the worst must know.
      finish: what is done to the mean, after the division.
    """

    def enter(measure: Callable[[Array, Array], Mean]) -> Metric:
        return _enter(Metric(name, of, Reading(higher_is_better, finish), measure=measure))

    return enter


def exact_metric(
    name: str, *, of: Outputs, higher_is_better: bool, summed: Summed | None = None
) -> Callable[[ExactFunction], Metric]:
    """Enters a metric that is no mean over examples, computed from all outputs at once.

    The function that follows takes `outputs` (float64), `wanted` and `weight`, NumPy arrays, and
    gives the value, or None where there is none. `weight`, [n], counts an example so many times, as
    if its row were there as often: all ones, or what a bootstrap has drawn. Examples that count 0
    times do not reach the function. A NaN, in or out, is worse than any number.

    Args:
      name: as tasks, results and tables have it.
      of: `"labels"`, `"values"` or `"tokens"`: which outputs the function compares.
      higher_is_better: which way is better: whoever calls a domain the worst must know.
      summed: of labels: the table of sums over examples from which it follows too, exactly or
        nearly (`core.metrics.tables`): where clients evaluate, nobody has all outputs.
    """

    check(summed is None or of == "labels", f"metric {name!r}: only tables of labels are summed")

    def enter(exact: ExactFunction) -> Metric:
        worst = -math.inf if higher_is_better else math.inf
        guarded = _guarded(exact, worst)
        return _enter(Metric(name, of, Reading(higher_is_better), exact=guarded, summed=summed))

    return enter


def _guarded(exact: ExactFunction, worst: float) -> ExactFunction:
    @functools.wraps(exact)
    def function(outputs: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> float | None:
        counted = weight > 0
        outputs = np.asarray(outputs[counted], np.float64)
        if not counted.any():
            return None
        if np.isnan(outputs).any():
            return worst
        with np.errstate(all="ignore"):
            value = exact(outputs, wanted[counted], np.asarray(weight[counted], np.float64))
        return worst if value is not None and math.isnan(value) else value

    return function


def _enter(entry: Metric) -> Metric:
    choose(entry.of, SHAPES, f"kind of metric {entry.name!r}")
    return METRICS.add(entry.name)(entry)


def named_metrics(names: Sequence[str], of: Outputs) -> dict[str, Metric]:
    """The metrics that a task names, by the names that results have."""
    found = [METRICS.get(name) for name in names]
    for name, entry in zip(names, found, strict=True):
        check(
            isinstance(entry, Metric),
            f"metric {name!r} does not say which way is better: @agnosticfl.metric(…) would",
        )
        check(entry.of == of, f"metric {name!r} is one of {entry.of}; the model has {of}")
    return {entry.name: entry for entry in found}


def reading(name: str, own: Iterable[tuple[str, Reading]] = ()) -> Reading:
    """How the metric called `name` is read: as its model says, or as its entry does."""
    if name == "loss":
        return LOSS
    for known, how in own:
        if known == name:
            return how
    try:
        return METRICS.get(name).reading
    except BadInput:
        raise BadInput(
            f"nobody says whether a higher {name!r} is better; give the model"
            f" higher_is_better={{{name!r}: True}} or False"
        ) from None
