# SPDX-License-Identifier: Apache-2.0
"""The order of examples and the random bits behind it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.core.random import example_order, random_bits


@given(st.integers(0, 2**32), st.integers(0, 10_000), st.integers(0, 30), st.integers(0, 30))
def test_an_order_holds_each_example_once_and_ignores_cohort_and_padding(
    seed: int, t: int, size: int, padding: int
):
    clients, sizes = np.array([5, 900]), np.array([3, size])
    order = example_order(seed, t, clients, sizes, max(size, 3) + padding)
    assert sorted(order[1, :size]) == list(range(size))
    assert not np.any(order[1, size:])
    alone = example_order(seed, t, clients[1:], sizes[1:], size)
    np.testing.assert_array_equal(order[1, :size], alone[0])


def test_orders_differ_from_round_to_round_and_client_to_client():
    sizes = np.array([50, 50])
    first, second = (example_order(0, t, np.array([1, 2]), sizes, 50) for t in (1, 2))
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0])


def test_one_word_of_bits_is_splitmix64():
    """The first outputs of the published generator for seed 0."""
    assert [int(random_bits(i)) for i in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_bits_are_balanced():
    bits = random_bits(1, np.arange(100)[:, None], np.arange(1000))
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(100 * 1000 * 64)
