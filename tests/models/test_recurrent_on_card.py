# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer as an NVIDIA card computes it, and which way is taken where.

Pallas's interpreter runs one group of threads after the other, so what is compared here has hidden
units for one group. Companies of more are compared on a card, by `benchmarks/pieces.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core import compiling
from agnosticfl.core.precision import in_precision
from agnosticfl.models.helpers import recurrent_on_card as kernels
from agnosticfl.models.helpers.recurrent import over_time
from agnosticfl.models.word_lstm import lstm_unit

Given = tuple[jax.Array, jax.Array, jax.Array]  # U, z and the gradient of h


def given(lanes: int, time: int, rows: int, hidden: int) -> Given:
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (lanes, time, rows)
    return (
        0.3 * jax.random.normal(keys[0], (lanes, hidden, 4 * hidden)),
        jax.random.normal(keys[1], (*shape, 4 * hidden)),
        jax.random.normal(keys[2], (*shape, hidden)),
    )


def layer(u: jax.Array, z: jax.Array, _: jax.Array) -> jax.Array:
    """h of one client."""
    return over_time(lstm_unit, u, None, z)


def plain(u: jax.Array, z: jax.Array, d: jax.Array) -> Any:
    """h and the gradients of U and z, of one client."""
    h, pullback = jax.vjp(lambda u, z: over_time(lstm_unit, u, None, z), u, z)
    return h, *pullback(d)


def by_kernels(u: jax.Array, z: jax.Array, d: jax.Array) -> Any:
    """h and the gradient of z, of one client."""
    packed = kernels.packed(u, u.dtype)
    h, kept = kernels.forward(lstm_unit, len(u), packed, z, interpret=True)
    return h, kernels.backward(lstm_unit, packed, kept, d, interpret=True)


@pytest.mark.parametrize(
    ("time", "rows", "hidden"),
    [(1, 16, 32), (2, 10, 30), (5, 16, 30), (5, 10, 32)],  # whole groups of rows and units, and not
)
def test_kernels_compute_the_layer(time: int, rows: int, hidden: int):
    u, z, d = (array[0] for array in given(1, time, rows, hidden))
    h, d_z = by_kernels(u, z, d)
    expected_h, _, expected_d_z = plain(u, z, d)
    np.testing.assert_allclose(h, expected_h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_z, expected_d_z, rtol=1e-5, atol=1e-6)


def test_gradients_too_small_for_float16_are_not_lost(monkeypatch: pytest.MonkeyPatch):
    u, z, d = (array[0] for array in given(1, 4, 16, 32))
    expected = plain(u, z, 1e-9 * d)
    parts = {"forward": kernels.forward, "backward": kernels.backward}
    for name, part in parts.items():
        monkeypatch.setattr(kernels, name, partial(part, interpret=True))
    monkeypatch.setattr(kernels, "fits", lambda *_: True)
    monkeypatch.setattr(compiling, "on_nvidia", lambda: True)
    monkeypatch.setattr(compiling, "on_hopper", lambda: True)
    actual = in_precision(plain, "tf32")(u, z, 1e-9 * d)
    for array, wanted in zip(actual, expected, strict=True):
        size = float(jnp.abs(wanted).max())
        np.testing.assert_allclose(array, wanted, rtol=1e-2, atol=1e-3 * size)  # 10 bits


def test_clients_side_by_side_are_one_call():
    many = given(3, 4, 16, 32)
    function = jax.vmap(by_kernels)
    alone = [by_kernels(*(array[k] for array in many)) for k in range(3)]
    for actual, one_by_one in zip(function(*many), zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(actual, jnp.stack(one_by_one))
    # Each group draws a number from those of all clients, so no axis is left to Pallas.
    text = str(jax.make_jaxpr(function)(*many))
    assert text.count("pallas_call[") == 2
    assert text.count("grid=(3,)") == 2


def test_a_client_that_shares_its_weights_is_like_one_that_has_its_own():
    u, z, d = given(3, 4, 16, 32)
    shared = jax.vmap(by_kernels, (None, 0, 0))(u[0], z, d)
    own = jax.vmap(by_kernels)(jnp.broadcast_to(u[0], u.shape), z, d)
    for actual, expected in zip(shared, own, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("hidden", "gates", "rows", "expected"),
    [
        (670, 4, 16, True),  # the paper's
        (641, 4, 1, True),
        (640, 4, 16, False),
        (673, 4, 16, False),  # its part of U has no room in a multiprocessor
        (670, 3, 16, False),
        (670, 4, 17, False),
    ],
)
def test_kernels_are_for_what_fits(hidden: int, gates: int, rows: int, expected: bool):
    assert kernels.fits(hidden, gates * hidden, rows) == expected


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("hidden", [5, 32])
def test_a_card_computes_the_same_layer(
    gradient: bool, hidden: int, monkeypatch: pytest.MonkeyPatch
):
    u, z, d = (array[0] for array in given(1, 3, 2, hidden))
    function: Any = plain if gradient else layer
    expected = function(u, z, d)
    monkeypatch.setattr(compiling, "on_nvidia", lambda: True)
    on_card = in_precision(function, "bf16")(u, z, d)  # a CPU rounds nothing
    for actual, wanted in zip(jax.tree.leaves(on_card), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("precision", "hopper", "gradient", "rows", "expected"),
    [
        ("bf16", True, True, 16, 2),
        ("bf16", True, False, 16, 0),  # nothing but products
        ("bf16", True, True, 32, 0),
        ("bf16", False, True, 16, 0),
        ("tf32", True, True, 16, 2),
        ("tf32", False, True, 16, 0),
        ("float32", True, True, 16, 0),
    ],
)
def test_u_stays_on_the_chip_of_a_hopper_in_16_bits_where_there_are_gradients(
    precision: str, hopper: bool, gradient: bool, rows: int, expected: int,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(compiling, "on_nvidia", lambda: True)
    monkeypatch.setattr(compiling, "on_hopper", lambda: hopper)
    function: Any = plain if gradient else layer
    # A new function each time: what JAX traced before is not what is asked for.
    traced = jax.make_jaxpr(in_precision(jax.vmap(lambda *arrays: function(*arrays)), precision))
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given(2, 3, rows, 650)]
    assert str(traced(*shapes)).count("pallas_call[") == expected
