# SPDX-License-Identifier: Apache-2.0
"""The server's state before round 1."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest

from agnosticfl.core.state import init_state
from agnosticfl.errors import BadInput
from agnosticfl.weights import fixed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": 0}, r"window size \(r\) is 0; it must be at least 1"),
        ({"domain_weights": [0.5, 0.6]}, "domain weights sum to 1.1"),
        ({"domain_count": [1.0, 0.0]}, r"first domain counts \(N_0\) are \[1.0, 0.0\]"),
        ({"domain_count": [1.0]}, "they must be 2 numbers above 0"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        init_state({"w": jnp.zeros(2)}, optax.sgd(1.0), fixed(), 2, **options)


def test_no_domain_is_refused():
    with pytest.raises(BadInput, match=r"number of domains \(p\) is 0; it must be at least 1"):
        init_state({}, optax.sgd(1.0), fixed(), 0, 1)
