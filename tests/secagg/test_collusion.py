# SPDX-License-Identifier: Apache-2.0
"""Two-faced servers, with clients that work for them: what they can open of one client's vector."""

import numpy as np
import pytest

from tests.secagg.adversary import far_witnesses, two_lists
from tests.secagg.federation import Play, federation

# Clients, and how many of them work for the server: each opened a vector when t was a majority.
PAIRS = [(n, 1) for n in (5, 7, 9, 15, 19)]
PAIRS += [(n, 2) for n in (8, 10, 12, 20, 30)]
PAIRS += [(n, 3) for n in (21, 25, 33)]


@pytest.mark.parametrize(("clients", "liars"), PAIRS)
def test_two_lists_of_survivors_open_no_vector(clients: int, liars: int):
    play = Play(federation(clients))
    found = two_lists(play, victim=0, liars=range(1, liars + 1)).vector_of(0)
    assert found is None or not np.array_equal(found, play.vectors[0])


@pytest.mark.parametrize(("clients", "dropout"), [(100, 0.3)])
def test_far_witnesses_open_no_vector_on_the_ring(clients: int, dropout: float):
    play = Play(federation(clients, dropout=dropout, dishonest=0))
    found = far_witnesses(play, victim=0).vector_of(0)
    assert found is None or not np.array_equal(found, play.vectors[0])
