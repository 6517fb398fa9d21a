# SPDX-License-Identifier: Apache-2.0
"""A model is a few functions on pytrees; `models.adapters` makes one from a library's module."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.core.lazy_jax import Array
from agnosticfl.core.metrics import SHAPES, Mean, Metric, Outputs, Reading, named_metrics
from agnosticfl.core.tree import PyTree
from agnosticfl.errors import check, choose

Params: TypeAlias = PyTree  # w
Examples: TypeAlias = Mapping[str, Array]  # name -> [n, ...]


class Need(NamedTuple):
    """What a model needs of one feature of its examples."""

    feature: str
    text: str  # what it must be, in words
    fits: Callable[[tuple[int, ...]], bool]  # the shape of one example
    ids: int | None = None  # whole numbers from 0 to ids − 1; any numbers if None


class Model(NamedTuple):
    """What the program needs to know of a model.

    `per_example_loss(params, examples, key)` gives one loss for each example, [n]. The key is for
    what is random in training (dropout); None means evaluation, with dropout off.
    """

    init: Callable[[Array], Params]
    per_example_loss: Callable[[Params, Examples, Array | None], Array]
    per_example_metrics: Callable[[Params, Examples], Mapping[str, Mean]]
    needs: tuple[Need, ...] = ()  # what data must have, as far as the model says so
    # How metrics of its own are read; those that the program knows by name need none.
    readings: tuple[tuple[str, Reading], ...] = ()  # pairs, since a model must have a hash
    # What it says of examples, with dropout off, and what that is compared with (label, targets).
    forward: Callable[[Params, Examples], Array] | None = None
    wanted: Callable[[Examples], Array] | None = None
    outputs: Outputs | None = None  # of forward: logits [n, K], values [n], logits [n, T, K + 4]
    exact: tuple[str, ...] = ()  # names of metrics that are made of outputs, not of sums
    # Whether it is no program of JAX: it takes NumPy's arrays and is evaluated without compiling.
    eager: bool = False


def no_metrics(*_: Any) -> Mapping[str, Mean]:
    """Nothing beside the loss."""
    return {}


def label(examples: Examples) -> Array:
    """What outputs are compared with, if nobody says otherwise: the feature `y`."""
    return examples["y"]


def from_functions(
    init: Callable[[Array], Params],
    per_example_loss: Callable[[Params, Examples], Array],
    per_example_metrics: Callable[[Params, Examples], Mapping[str, Mean]] = no_metrics,
    higher_is_better: Mapping[str, bool] = MappingProxyType({}),
    *,
    forward: Callable[[Params, Examples], Array] | None = None,
    outputs: Outputs = "labels",
    wanted: Callable[[Examples], Array] = label,
    metrics: Sequence[str] = (),
) -> Model:
    """A model from plain functions without randomness.

    Args:
      init: `init(key)` gives w_0.
      per_example_loss: `(params, examples) -> [n]`.
      per_example_metrics: `(params, examples) -> {name: Mean}`.
      higher_is_better: for each metric of one's own, which way is better.
      forward: `(params, examples) -> outputs`, what the model says of examples.
      outputs: what forward gives: `"labels"`, logits [n, K]; `"values"`, numbers [n]; `"tokens"`,
        logits [n, T, K + 4].
      wanted: `examples -> array`, what the outputs are compared with; default the feature `y`.
      metrics: names of metrics, measured from what forward gives.
    """
    model = Model(
        init,
        lambda params, examples, _: per_example_loss(params, examples),
        per_example_metrics,
        readings=own_readings(higher_is_better),
    )
    return with_forward(model, forward, outputs, wanted, metrics)


def own_readings(higher_is_better: Mapping[str, bool]) -> tuple[tuple[str, Reading], ...]:
    """How metrics of one's own are read, from which way is better for each."""
    return tuple((name, Reading(higher)) for name, higher in higher_is_better.items())


def with_forward(
    model: Model,
    forward: Callable[[Params, Examples], Array] | None,
    outputs: Outputs,
    wanted: Callable[[Examples], Array],
    metrics: Sequence[str],
) -> Model:
    """`model` with a forward function, measured by the metrics named; see `from_functions`."""
    choose(outputs, SHAPES, "outputs of a model")
    if forward is None:
        given = {"outputs": outputs != "labels", "wanted": wanted is not label, "metrics": metrics}
        for name, is_given in given.items():
            check(not is_given, f"{name} of a model is about what forward gives; give forward too")
        return model
    chosen = named_metrics(metrics, outputs)
    said = _with_rank(forward, outputs)
    return model._replace(
        per_example_metrics=_sums_of(model, said, wanted, chosen),
        readings=model.readings + tuple((name, entry.reading) for name, entry in chosen.items()),
        forward=said,
        wanted=wanted,
        outputs=outputs,
        exact=tuple(name for name, entry in chosen.items() if entry.exact),
    )


def _with_rank(
    forward: Callable[[Params, Examples], Array], outputs: Outputs
) -> Callable[[Params, Examples], Array]:
    """`forward`, which says so if its outputs are of another kind: [n, 1] for [n], mostly."""

    def checked(params: Params, examples: Examples) -> Array:
        found = forward(params, examples)
        check(
            found.ndim == SHAPES[outputs].count(",") + 1,
            f"forward gives an array of shape {list(found.shape)}; outputs = {outputs!r} means"
            f" {SHAPES[outputs]}",
        )
        return found

    return checked


def _sums_of(
    model: Model,
    forward: Callable[[Params, Examples], Array],
    wanted: Callable[[Examples], Array],
    chosen: Mapping[str, Metric],
) -> Callable[[Params, Examples], Mapping[str, Mean]]:
    """The model's own metrics beside those of `chosen` that are sums over examples."""
    sums = {name: entry.measure for name, entry in chosen.items() if entry.measure}

    def measure(params: Params, examples: Examples) -> Mapping[str, Mean]:
        own = model.per_example_metrics(params, examples)
        for name in own:
            check(name not in chosen, f"metric {name!r} is both the model's own and a named one")
        if not sums:
            return own
        said, right = forward(params, examples), wanted(examples)
        return {**own, **{name: function(said, right) for name, function in sums.items()}}

    return measure
