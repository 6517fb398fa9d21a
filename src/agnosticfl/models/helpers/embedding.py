# SPDX-License-Identifier: Apache-2.0
"""A table of vectors whose gradient has the same bits each time, on any device."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class Embedding(nnx.Embed):
    """Ids […] -> their vectors […, embedding]."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        del out_sharding
        return added_up_first(super().__call__(inputs), inputs)


@jax.custom_vjp
def added_up_first(vectors: Array, ids: Array) -> Array:
    """`vectors` as they are; their gradients are added up by id before the table gets them.

    An accelerator adds what is scattered over a table in an order of its own each time. After this
    a row of the table gets one gradient, and zeros, whose order is no matter.
    """
    del ids
    return vectors


def _forward(vectors: Array, ids: Array) -> tuple[Array, Array]:
    return vectors, ids


def _backward(ids: Array, d: Array) -> tuple[Array, None]:
    # A CPU adds one after the other anyway.
    return jax.lax.platform_dependent(d, ids, cpu=lambda d, _: d, default=at_first_places), None


added_up_first.defvjp(_forward, _backward)


def at_first_places(d: Array, ids: Array) -> Array:
    """At the first place of each id the sum of all its gradients, and 0 at its others.

    It is a product with ones and zeros, of n × n for n ids: smaller than their logits.
    """
    flat = ids.reshape(-1)
    same = flat[:, None] == flat[None]
    first = jnp.argmax(same, axis=1) == jnp.arange(len(flat))
    added = (same & first[:, None]).astype(d.dtype)
    # In float32 whatever the precision of products is: this one is a sum.
    summed = jnp.matmul(added, d.reshape(len(flat), -1), precision=jax.lax.Precision.HIGHEST)
    return summed.reshape(d.shape)
