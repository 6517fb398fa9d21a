# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on pytrees of arrays, and the one safe division of the program."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

PyTree: TypeAlias = Any  # nested tuples, lists and dicts of arrays, as JAX takes them

SMALLEST = float(jnp.finfo(jnp.float32).tiny)  # below this a float32 has lost its precision


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
    leaves = jax.tree.leaves(tree)
    largest = jnp.max(jnp.array([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    squares = [jnp.sum(jnp.square(divide(leaf, largest))) for leaf in leaves]
    return largest * jnp.sqrt(jnp.sum(jnp.array(squares)))


def num_bytes(tree: PyTree) -> int:
    """Bytes of all leaves, as they would be sent."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def size(tree: PyTree) -> int:
    """How many numbers `tree` holds (|W| for parameters)."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))
