# SPDX-License-Identifier: Apache-2.0
"""Models of a user's own, one for each adapter: what a task names as `module:function`."""

from typing import Any

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

import agnosticfl as afl

METRICS = ("accuracy", "auroc")


def cross_entropy(logits: Array, examples: Any) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def plain(features: int) -> afl.Model:
    """Logistic regression by hand."""

    def forward(params: Any, examples: Any) -> Array:
        return examples["x"] @ params["w"] + params["b"][None]

    return afl.from_functions(
        lambda _: {"w": jnp.zeros((features, 2)), "b": jnp.zeros(2)},
        lambda params, examples: cross_entropy(forward(params, examples), examples),
        forward=forward,
        metrics=METRICS,
    )


class Net(nnx.Module):
    def __init__(self, features: int, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(features, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


def of_nnx(features: int) -> afl.Model:
    """With dropout, which must be off in predictions."""
    return afl.from_nnx(
        lambda rngs: Net(features, rngs),
        lambda net, examples: cross_entropy(net(examples["x"]), examples),
        forward=lambda net, examples: net(examples["x"]),
        metrics=METRICS,
    )


class LinenNet(linen.Module):
    deterministic: bool | None = None

    @linen.compact
    def __call__(self, x: Array) -> Array:
        x = linen.relu(linen.Dense(8)(x))
        return linen.Dense(2)(linen.Dropout(0.5, deterministic=self.deterministic)(x))


def of_linen(features: int) -> afl.Model:
    sample: Any = {"x": np.zeros((1, features), np.float32), "y": np.zeros(1, np.int32)}
    return afl.from_linen(
        LinenNet(),
        sample,
        lambda net, examples: cross_entropy(net(examples["x"]), examples),
        forward=lambda net, examples: net(examples["x"]),
        metrics=METRICS,
    )


def of_equinox(features: int) -> afl.Model:
    def forward(net: Any, examples: Any) -> Array:
        return jax.vmap(net)(examples["x"])

    return afl.from_equinox(
        lambda key: eqx.nn.MLP(features, 2, width_size=8, depth=1, key=key),
        lambda net, examples, _: cross_entropy(forward(net, examples), examples),
        forward=forward,
        metrics=METRICS,
    )


def without_forward(features: int) -> afl.Model:
    """Trains, and cannot predict."""
    return plain(features)._replace(
        per_example_metrics=lambda *_: {}, forward=None, wanted=None, outputs=None, exact=()
    )
