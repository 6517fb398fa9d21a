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
        return vectors(self.embedding[...], inputs)


@jax.custom_vjp
def vectors(table: Array, ids: Array) -> Array:
    """The rows of the table [words, embedding] at these ids."""
    return jnp.take(table, ids, axis=0)


def _forward(table: Array, ids: Array) -> tuple[Array, tuple[Array, Array]]:
    # The empty array remembers the table's shape.
    return vectors(table, ids), (ids, jnp.zeros((table.shape[0], 0), table.dtype))


def _backward(kept: tuple[Array, Array], d: Array) -> tuple[Array, None]:
    ids, like_table = kept
    words = like_table.shape[0]
    d, ids = d.reshape(-1, d.shape[-1]), ids.reshape(-1)
    # A CPU adds one after the other anyway.
    ways = {"cpu": scattered, "default": gathered}
    return jax.lax.platform_dependent(
        d, ids, **{where: _of_table(way, words) for where, way in ways.items()}
    ), None


vectors.defvjp(_forward, _backward)


def _of_table(way: Any, words: int) -> Any:
    return lambda d, ids: way(d, ids, words)


def scattered(d: Array, ids: Array, words: int) -> Array:
    """The gradient of a table: each gradient d [n, embedding] is added to the row of its id."""
    return jnp.zeros((words, d.shape[1]), d.dtype).at[ids].add(d)


def gathered(d: Array, ids: Array, words: int) -> Array:
    """The same for an accelerator, which would scatter in an order of its own each time.

    The gradients of each id are added up first, by a product with ones and zeros, of n × n for n
    ids: smaller than their logits. Then each row of the table fetches its sum, which costs less
    than a table of zeros to scatter them over.
    """
    number = len(ids)
    same = ids[:, None] == ids[None]
    # In float32 whatever the precision of products is: this one is a sum.
    summed = jnp.matmul(same.astype(d.dtype), d, precision=jax.lax.Precision.HIGHEST)
    # Any place of an id will do, for they all have the same sum: the last one, without a race.
    last = jnp.argmax(same[:, ::-1], axis=1) == jnp.arange(number)[::-1]
    rows = jnp.where(last, ids, words)
    place = (
        jnp.full(words, number, jnp.int32)
        .at[rows]
        .set(jnp.arange(number, dtype=jnp.int32), mode="drop", unique_indices=True)
    )
    return jnp.where((place < number)[:, None], summed[jnp.minimum(place, number - 1)], 0)
