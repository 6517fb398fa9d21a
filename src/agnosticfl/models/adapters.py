# SPDX-License-Identifier: Apache-2.0
"""A model from a module of a neural-network library."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax import Array

from agnosticfl.core.fingerprint import is_known
from agnosticfl.core.metrics import Mean, Outputs
from agnosticfl.core.model import (
    Examples,
    Model,
    Params,
    label,
    no_metrics,
    own_readings,
    with_forward,
)
from agnosticfl.core.programs import learned
from agnosticfl.errors import BadInput, check, require


def from_nnx(
    create: Callable[[Any], Any],
    per_example_loss: Callable[[Any, Examples], Array],
    per_example_metrics: Callable[[Any, Examples], Mapping[str, Mean]] = no_metrics,
    higher_is_better: Mapping[str, bool] = MappingProxyType({}),
    *,
    forward: Callable[[Any, Examples], Array] | None = None,
    outputs: Outputs = "labels",
    wanted: Callable[[Examples], Array] = label,
    metrics: Sequence[str] = (),
) -> Model:
    """A model from a Flax NNX module.

    Args:
      create: `create(rngs)` builds the module; its `nnx.Param`s are the parameters w.
      per_example_loss: `(module, examples) -> [n]`, called with the module in training mode
        (dropout on) or evaluation mode.
      per_example_metrics: `(module, examples) -> {name: Mean}`, in evaluation mode.
      higher_is_better: for each metric of one's own, which way is better.
      forward: `(module, examples) -> outputs`, what the module says, in evaluation mode.
      outputs: what forward gives: `"labels"`, logits [n, K]; `"values"`, numbers [n]; `"tokens"`,
        logits [n, T, K + 4].
      wanted: `examples -> array`, what the outputs are compared with; default the feature `y`.
      metrics: names of metrics, measured from what forward gives.
    """
    for name, kind in learned(_not_trained, create):
        raise BadInput(
            f"the module's {name} is a {kind}; only parameters and random keys are allowed"
            " (batch statistics are not federated)"
        )

    def init(key: Array) -> Params:
        from flax import nnx  # here and below: who traces nothing does not load it

        return nnx.to_pure_dict(nnx.state(create(nnx.Rngs(key)), nnx.Param))

    made_once = functools.cache(functools.partial(_made_once, create))

    def module_with(params: Params, key: Array | None) -> Any:
        from flax import nnx

        module = made_once()(key) if is_known(create) else _fresh(create, key)
        nnx.update(module, params)
        (module.eval if key is None else module.train)()
        return module

    def evaluated(function: Callable[[Any, Examples], Any]) -> Callable[[Params, Examples], Any]:
        return lambda params, examples: function(module_with(params, None), examples)

    model = Model(
        init,
        lambda params, examples, key: per_example_loss(module_with(params, key), examples),
        evaluated(per_example_metrics),
        readings=own_readings(higher_is_better),
    )
    return with_forward(model, forward and evaluated(forward), outputs, wanted, metrics)


def _fresh(create: Callable[[Any], Any], key: Array | None) -> Any:
    """A new module. Its initial weights are replaced before use: the compiler leaves them out."""
    from flax import nnx

    return create(nnx.Rngs(jax.random.key(0) if key is None else key))


def _made_once(create: Callable[[Any], Any]) -> Callable[[Array | None], Any]:
    """The same for modules that are all alike, made without tracing initial weights each time.

    Each layer has a random stream of its own from the key, if any of them has one at all.
    """
    from flax import nnx

    kind, structure = nnx.split(nnx.eval_shape(lambda: create(nnx.Rngs(0))))

    @jax.jit  # traced once, wherever it is called
    def streams(key: Array) -> Any:
        return nnx.state(create(nnx.Rngs(key)), nnx.RngState)

    random = bool(nnx.to_flat_state(nnx.filter_state(structure, nnx.RngState)))

    def make(key: Array | None) -> Any:
        # What is in `structure` may be changed only where it was made: here it is made again.
        module = nnx.merge(kind, jax.tree.map(lambda leaf: leaf, structure))
        if random and key is not None:
            nnx.update(module, streams(key))
        return module

    return make


def _not_trained(create: Callable[[Any], Any]) -> list[tuple[str, str]]:
    """Name and type of whatever a NNX module has beside parameters and random keys."""
    from flax import nnx

    structure = nnx.state(nnx.eval_shape(lambda: create(nnx.Rngs(0))))
    return [
        (".".join(map(str, path)), type(leaf).__name__)
        for path, leaf in nnx.to_flat_state(structure)
        if not isinstance(leaf, nnx.Param | nnx.RngState)
    ]


def from_linen(
    module: Any,
    sample: Examples,
    per_example_loss: Callable[[Any, Examples], Array],
    per_example_metrics: Callable[[Any, Examples], Mapping[str, Mean]] = no_metrics,
    higher_is_better: Mapping[str, bool] = MappingProxyType({}),
    *,
    forward: Callable[[Any, Examples], Array] | None = None,
    outputs: Outputs = "labels",
    wanted: Callable[[Examples], Array] = label,
    metrics: Sequence[str] = (),
) -> Model:
    """A model from a Flax Linen module.

    Args:
      module: with parameters and nothing else. If it has a field `deterministic` (`None` is a good
        default, for `nn.Dropout(0.5, deterministic=self.deterministic)`), that is False in
        training and True in evaluation. In training, `rngs` holds the key `dropout`.
      sample: one example or more, to find the shapes of the parameters with.
      per_example_loss: `(module, examples) -> [n]`, called with the module bound to its parameters.
      per_example_metrics: `(module, examples) -> {name: Mean}`, in evaluation.
      higher_is_better: for each metric of one's own, which way is better.
      forward: `(module, examples) -> outputs`, what the module says, in evaluation.
      outputs: what forward gives: `"labels"`, logits [n, K]; `"values"`, numbers [n]; `"tokens"`,
        logits [n, T, K + 4].
      wanted: `examples -> array`, what the outputs are compared with; default the feature `y`.
      metrics: names of metrics, measured from what forward gives.
    """
    from flax import linen

    def in_mode(deterministic: bool) -> Any:
        known = "deterministic" in {field.name for field in dataclasses.fields(module)}
        return module.clone(deterministic=deterministic) if known else module

    def variables(key: Array) -> Any:
        return linen.init(per_example_loss, in_mode(deterministic=True))(key, sample)

    others = sorted(set(jax.eval_shape(variables, jax.random.key(0))) - {"params"})
    check(
        not others,
        f"the module has variables in {', '.join(others)}; only params are allowed"
        " (batch statistics are not federated)",
    )

    def loss(params: Params, examples: Examples, key: Array | None) -> Array:
        call = linen.apply(per_example_loss, in_mode(deterministic=key is None))
        rngs = None if key is None else {"dropout": key}
        return call({"params": params}, examples, rngs=rngs)

    def evaluated(function: Callable[[Any, Examples], Any]) -> Callable[[Params, Examples], Any]:
        call = linen.apply(function, in_mode(deterministic=True))
        return lambda params, examples: call({"params": params}, examples)

    readings = own_readings(higher_is_better)
    own_metrics = evaluated(per_example_metrics)
    model = Model(lambda key: variables(key)["params"], loss, own_metrics, readings=readings)
    return with_forward(model, forward and evaluated(forward), outputs, wanted, metrics)


def from_equinox(
    create: Callable[[Array], Any],
    per_example_loss: Callable[[Any, Examples, Array | None], Array],
    per_example_metrics: Callable[[Any, Examples], Mapping[str, Mean]] = no_metrics,
    higher_is_better: Mapping[str, bool] = MappingProxyType({}),
    *,
    forward: Callable[[Any, Examples], Array] | None = None,
    outputs: Outputs = "labels",
    wanted: Callable[[Examples], Array] = label,
    metrics: Sequence[str] = (),
) -> Model:
    """A model from an Equinox module.

    Args:
      create: `create(key)` builds the module; its floating-point arrays are the parameters w.
      per_example_loss: `(module, examples, key) -> [n]`. Equinox's layers take their random keys as
        arguments, so the loss gets one; it is None in evaluation, when the module is in inference
        mode. Layers take one example: `jax.vmap(module)(x, key=keys)`.
      per_example_metrics: `(module, examples) -> {name: Mean}`, in inference mode.
      higher_is_better: for each metric of one's own, which way is better.
      forward: `(module, examples) -> outputs`, what the module says, in inference mode.
      outputs: what forward gives: `"labels"`, logits [n, K]; `"values"`, numbers [n]; `"tokens"`,
        logits [n, T, K + 4].
      wanted: `examples -> array`, what the outputs are compared with; default the feature `y`.
      metrics: names of metrics, measured from what forward gives.
    """
    eqx = require("equinox", "from_equinox", "equinox")

    def init(key: Array) -> Params:
        leaves = jax.tree.leaves_with_path(eqx.filter(create(key), eqx.is_inexact_array))
        return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    def module_with(params: Params, inference: bool) -> Any:
        # As in from_nnx, the fresh weights are replaced and never computed.
        own, rest = eqx.partition(create(jax.random.key(0)), eqx.is_inexact_array)
        own = jax.tree.map_with_path(lambda path, _: params[jax.tree_util.keystr(path)], own)
        return eqx.nn.inference_mode(eqx.combine(own, rest), value=inference)

    def evaluated(function: Callable[[Any, Examples], Any]) -> Callable[[Params, Examples], Any]:
        return lambda params, examples: function(module_with(params, inference=True), examples)

    model = Model(
        init,
        lambda params, examples, key: per_example_loss(
            module_with(params, inference=key is None), examples, key
        ),
        evaluated(per_example_metrics),
        readings=own_readings(higher_is_better),
    )
    return with_forward(model, forward and evaluated(forward), outputs, wanted, metrics)
