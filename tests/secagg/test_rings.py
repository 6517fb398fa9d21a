# SPDX-License-Identifier: Apache-2.0
"""Vectors whose first numbers have fewer bits: as bytes, and in a secure sum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.secagg import rings
from agnosticfl.secagg.messages import Masked, parse
from agnosticfl.secagg.rings import BLOCK, Rings
from tests.secagg.federation import STAGES, Play, federation

numbers = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)


@given(numbers, st.data())
def test_bytes_are_the_bits_one_after_the_other(values: list[int], data: st.DataObject):
    short, bits = data.draw(st.integers(0, len(values))), data.draw(st.integers(1, 32))
    own, vector = Rings(len(values), short, bits), np.array(values, "<u4")
    sent = rings.to_bytes(vector, own)
    # As one large number: number i begins at bit i · bits.
    narrow = sum((value % 2**bits) << i * bits for i, value in enumerate(values[:short]))
    wide = b"".join(value.to_bytes(4, "little") for value in values[short:])
    assert sent == narrow.to_bytes(-(-short * bits // 8), "little") + wide
    assert len(sent) == rings.num_bytes(own)
    back = rings.from_bytes(sent, own)
    assert back.tolist() == [value % 2**bits for value in values[:short]] + values[short:]
    np.testing.assert_array_equal(back, rings.reduced(vector, own))


@pytest.mark.parametrize("bits", [1, 9, 13, 17, 31, 32])
def test_many_numbers_come_back(bits: int):
    """More than are worked on at a time."""
    vector = np.random.default_rng(0).integers(0, 2**32, 2 * BLOCK + 77, np.uint32)
    own = Rings(len(vector), len(vector) - 5, bits)
    back = rings.from_bytes(rings.to_bytes(vector, own), own)
    np.testing.assert_array_equal(back[:-5], vector[:-5] % np.uint64(2**bits))
    np.testing.assert_array_equal(back[-5:], vector[-5:])


@given(st.integers(5, 9), st.integers(1, 32), st.data())
@settings(max_examples=20)
def test_the_sum_is_exact_whoever_drops_out(clients: int, bits: int, data: st.DataObject):
    members = federation(clients)
    gone = data.draw(
        st.lists(st.integers(0, clients - 1), unique=True, max_size=clients - 2 * clients // 3 - 1)
    )
    silent = {client: data.draw(st.sampled_from(STAGES)) for client in gone}
    play = Play(members, length=7, short=4, bits=bits).to_the_end(silent)
    exact = play.vectors[list(play.server.survivors)].sum(axis=0, dtype=np.uint64)
    modulus = np.array([2**bits] * 4 + [2**32] * 3, np.uint64)
    assert play.server.total is not None
    np.testing.assert_array_equal(play.server.total, exact % modulus)


def test_short_numbers_travel_in_their_bits_and_look_random():
    """Of 8000 zeros, 5 bits each: every value about as often as any other."""
    play = Play(federation(5), length=8001, short=8000, bits=5)
    play.vectors[:] = 0
    play.to_the_end()
    (sent, *_) = [parse(reply, Masked).vector for reply in play.replies["masked vectors"].values()]
    assert len(sent) == 8000 * 5 // 8 + 4
    found = np.bincount(rings.from_bytes(sent, Rings(8001, 8000, 5))[:-1], minlength=32)
    assert found.size == 32
    assert np.all(np.abs(found - 250) < 6 * (8000 / 32 * 31 / 32) ** 0.5)
    np.testing.assert_array_equal(play.server.total, np.zeros(8001))
