# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np

from agnosticfl.core import tree


def test_division_by_nothing_is_nothing():
    result = tree.divide(jnp.array([6.0, 6.0, 6.0]), jnp.array([3.0, 0.0, 1e-40]))
    np.testing.assert_array_equal(result, [2.0, 0.0, 0.0])


def test_the_norm_neither_overflows_nor_divides_by_zero():
    assert tree.norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}) == 5.0
    np.testing.assert_allclose(tree.norm([jnp.array([3e30, 4e30])]), 5e30, rtol=1e-6)
    assert tree.norm([jnp.zeros(3)]) == 0.0


def test_sizes_are_counted_over_all_leaves():
    leaves = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4, jnp.int8)}
    assert (tree.size(leaves), tree.num_bytes(leaves)) == (10, 28)
