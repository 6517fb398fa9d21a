# SPDX-License-Identifier: Apache-2.0
"""A model is three functions on pytrees; `models.adapters` makes one from a library's module."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from jax import Array

from agnosticfl.core.metrics import Mean, Reading
from agnosticfl.core.tree import PyTree

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


def no_metrics(*_: Any) -> Mapping[str, Mean]:
    """Nothing beside the loss."""
    return {}


def from_functions(
    init: Callable[[Array], Params],
    per_example_loss: Callable[[Params, Examples], Array],
    per_example_metrics: Callable[[Params, Examples], Mapping[str, Mean]] = no_metrics,
    higher_is_better: Mapping[str, bool] = MappingProxyType({}),
) -> Model:
    """A model from plain functions without randomness.

    Args:
      init: `init(key)` gives w_0.
      per_example_loss: `(params, examples) -> [n]`.
      per_example_metrics: `(params, examples) -> {name: Mean}`.
      higher_is_better: for each metric of one's own, which way is better.
    """
    return Model(
        init,
        lambda params, examples, _: per_example_loss(params, examples),
        per_example_metrics,
        readings=own_readings(higher_is_better),
    )


def own_readings(higher_is_better: Mapping[str, bool]) -> tuple[tuple[str, Reading], ...]:
    """How metrics of one's own are read, from which way is better for each."""
    return tuple((name, Reading(higher)) for name, higher in higher_is_better.items())
