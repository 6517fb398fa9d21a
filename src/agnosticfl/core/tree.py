# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on pytrees of arrays, and the one safe division of the program."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from agnosticfl.core.lazy_jax import Array, jax, jnp

PyTree: TypeAlias = Any  # nested tuples, lists and dicts of arrays, as JAX takes them

SMALLEST = float(np.finfo(np.float32).tiny)  # below this a float32 has lost its precision


def divide(numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, and 0 where the denominator is 0 (or too small to divide by)."""
    usable = denominator > SMALLEST
    return jnp.where(usable, numerator / jnp.where(usable, denominator, 1), 0)


def mean(values: Array, where: Array) -> Array:
    """The mean of the numbers for which `where` holds, 0 if there is none; no sum overflows."""
    chosen = where.astype(values.dtype)
    return jnp.sum(divide(chosen, jnp.sum(chosen)) * values)


def scale(factor: Array, tree: PyTree) -> PyTree:
    """factor · tree."""
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)


def add(a: PyTree, b: PyTree) -> PyTree:
    """a + b."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """a − b."""
    return jax.tree.map(jnp.subtract, a, b)


def row(tree: PyTree, number: int | Array) -> PyTree:
    """`leaf[number]` of every leaf."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


def select(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where the scalar `condition` holds, else `no`."""
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def all_finite(tree: PyTree) -> Array:
    """True if no leaf holds an infinity or a NaN."""
    return jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]).all()


def norm(tree: PyTree) -> Array:
    """Euclidean norm of all numbers of `tree` together; no square of them overflows."""
    parts = jax.tree.leaves(tree)
    if not parts:
        return jnp.zeros(())
    largest = jnp.max(jnp.array([jnp.max(jnp.abs(leaf)) for leaf in parts]))
    squares = [jnp.sum(jnp.square(divide(leaf, largest))) for leaf in parts]
    return largest * jnp.sqrt(jnp.sum(jnp.array(squares)))


def leaves(tree: PyTree) -> Iterator[Any]:
    """The leaves in JAX's order; where they are NumPy's arrays, without JAX."""
    if type(tree) is dict:
        for name in sorted(tree):
            yield from leaves(tree[name])
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from leaves(part)
    elif isinstance(tree, np.ndarray | np.generic):
        yield tree
    else:
        yield from jax.tree.leaves(tree)


def num_bytes(tree: PyTree) -> int:
    """Bytes of all leaves, as they would be sent."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def size(tree: PyTree) -> int:
    """How many numbers `tree` holds (|W| for parameters)."""
    return sum(int(leaf.size) for leaf in leaves(tree))


def named(tree: PyTree) -> dict[str, np.ndarray]:
    """A pytree's arrays by name, as in `{"linear.kernel": …}`, in the order of its leaves."""
    return {_name(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def from_named(arrays: Mapping[str, Any], like: PyTree) -> PyTree:
    """The inverse of `named`, for a pytree with the structure of `like`."""
    # Not `jnp.asarray`, which compiles a program for each shape.
    return jax.tree.map_with_path(lambda path, _: jax.device_put(arrays[_name(path)]), like)


def shapes(tree: PyTree) -> dict[str, str]:
    """Name -> type and shape of each array, or of what has a type and a shape."""
    found = jax.tree.leaves_with_path(tree)
    return {_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in found}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "w"
