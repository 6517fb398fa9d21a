# SPDX-License-Identifier: Apache-2.0
"""A model is three functions on pytrees; adapters make one from a neural-network library."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
from jax import Array

from agnosticfl.errors import check
from agnosticfl.metrics import Mean

Params: TypeAlias = Any  # a pytree of arrays
Examples: TypeAlias = Mapping[str, Array]  # name -> [n, ...]


class Model(NamedTuple):
    """What the program needs to know of a model.

    `per_example_loss(params, examples, key)` gives one loss an example, [n]. The key is for what is
    random in training (dropout); None means evaluation, with dropout off.
    """

    init: Callable[[Array], Params]
    per_example_loss: Callable[[Params, Examples, Array | None], Array]
    per_example_metrics: Callable[[Params, Examples], Mapping[str, Mean]]


def no_metrics(*_: Any) -> Mapping[str, Mean]:
    """Nothing beside the loss."""
    return {}


def from_functions(
    init: Callable[[Array], Params],
    per_example_loss: Callable[[Params, Examples], Array],
    per_example_metrics: Callable[[Params, Examples], Mapping[str, Mean]] = no_metrics,
) -> Model:
    """A model from plain functions without randomness."""
    return Model(
        init, lambda params, examples, _: per_example_loss(params, examples), per_example_metrics
    )


def from_nnx(
    create: Callable[[Any], Any],
    per_example_loss: Callable[[Any, Examples], Array],
    per_example_metrics: Callable[[Any, Examples], Mapping[str, Mean]] = no_metrics,
) -> Model:
    """A model from a Flax NNX module.

    Args:
      create: `create(rngs)` builds the module; its `nnx.Param`s are the parameters w.
      per_example_loss: `(module, examples) -> [n]`, called with the module in training mode
        (dropout on) or evaluation mode.
      per_example_metrics: `(module, examples) -> {name: Mean}`, in evaluation mode.
    """
    from flax import nnx  # here, so that the core needs no neural-network library

    structure = nnx.state(nnx.eval_shape(lambda: create(nnx.Rngs(0))))
    for path, leaf in nnx.to_flat_state(structure):
        check(
            isinstance(leaf, nnx.Param | nnx.RngState),
            f"the module's {'.'.join(map(str, path))} is a {type(leaf).__name__}; only parameters"
            " and random keys are allowed (batch statistics are not federated)",
        )

    def init(key: Array) -> Params:
        return nnx.to_pure_dict(nnx.state(create(nnx.Rngs(key)), nnx.Param))

    def module_with(params: Params, key: Array | None) -> Any:
        # A fresh module gives each layer a random stream of its own from `key`. Its initial
        # weights are replaced before use, so the compiler leaves their computation out.
        module = create(nnx.Rngs(jax.random.key(0) if key is None else key))
        nnx.update(module, params)
        (module.eval if key is None else module.train)()
        return module

    return Model(
        init,
        lambda params, examples, key: per_example_loss(module_with(params, key), examples),
        lambda params, examples: per_example_metrics(module_with(params, None), examples),
    )
