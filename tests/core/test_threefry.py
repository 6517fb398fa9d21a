# SPDX-License-Identifier: Apache-2.0
"""Random numbers in NumPy are those of JAX, bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core import threefry


def ours(seed: int, *numbers: int) -> threefry.Key:
    key = threefry.key(seed)
    for number in numbers:
        key = threefry.fold_in(key, number)
    return key


def theirs(seed: int, *numbers: int) -> jax.Array:
    key = jax.random.key(seed)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


@pytest.mark.parametrize("numbers", [(), (0,), (7, 2**32 - 1), (3, 1, 4)])
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**32 - 1])
def test_keys(seed: int, numbers: tuple[int, ...]):
    np.testing.assert_array_equal(
        np.array(ours(seed, *numbers)), jax.random.key_data(theirs(seed, *numbers))
    )


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 7), (0, 4)])
def test_uniform_numbers_and_signs(shape: tuple[int, ...]):
    own, other = ours(11, 5), theirs(11, 5)
    found = threefry.uniform(own, shape)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, jax.random.uniform(other, shape))
    signs = threefry.rademacher(own, shape)
    np.testing.assert_array_equal(signs, jax.random.rademacher(other, shape, jnp.float32))
