# SPDX-License-Identifier: Apache-2.0
"""What a client without JAX sends is what JAX makes of the same contribution."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from agnosticfl.channels import in_numpy
from agnosticfl.channels.bounds import shared_out
from agnosticfl.core import threefry, tree
from agnosticfl.core.contribution import ClientSum
from agnosticfl.deploy import wire
from agnosticfl.deploy.task import federated_config
from agnosticfl.runs.build_channel import build_channel
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.runs.judging import bounds_of
from agnosticfl.runs.resolve import resolve

CLIENTS = 7
SECURE = ("secure.name=simulate", "secure.update=3.0", "secure.examples=200", "secure.loss=20.0")
WAYS = {
    "plain": (),
    "secure": SECURE,
    "8 bits": ("compress.bits=8",),
    "4 bits": ("compress.bits=4",),
    "largest": ("compress.top_k=0.3",),
    "secure 8 bits": (*SECURE, "compress.bits=8"),
    "secure 4 bits": (*SECURE, "compress.bits=4", "secure.most_clients=9"),
}
EXACT = ("plain", "secure", "largest")  # of the others the turned update is rounded otherwise


def config(*sets: str) -> Config:
    return federated_config(resolve("toy", sets=sets), CLIENTS)


def contribution(scale: float = 0.05, count: tuple[int, ...] = (50, 0, 31)) -> ClientSum:
    rng = np.random.default_rng(3)
    number = np.array(count, np.float32)
    beta = np.asarray(number @ np.array([1.0, 0.4, 0.25], np.float32))
    shapes = {"b.bias": (3,), "a.weight": (3, 5), "z": (), "c": (2, 2, 2)}
    delta = {n: np.asarray(beta * rng.normal(0, scale, s), np.float32) for n, s in shapes.items()}
    loss = number * rng.uniform(0.1, 3, 3).astype(np.float32)
    return ClientSum(delta, beta, loss, number, np.zeros((), np.float32))  # type: ignore[arg-type]


def both(
    settings: Config, own: ClientSum, round_: int = 4
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """In NumPy, and by the channel itself; it has carried totals, so that its state is one."""
    jaxed: Any = jax.tree.map(jnp.asarray, own)
    channel = build_channel(settings)(jax.eval_shape(lambda: jaxed))
    state = channel.init()
    for t in range(1, round_):
        message = channel.encode(state, jaxed, jax.random.key(t))
        state = channel.decode(state, channel.summand(message), jax.random.key(0)).channel_state
    expected = wire.pack(channel.encode(state, jaxed, jax.random.fold_in(jax.random.key(5), 6)))
    secure = None if settings.secure is None else (most_clients(settings), bounds_of(settings))
    named: Mapping[str, np.ndarray] = tree.named(state)
    key = threefry.fold_in(threefry.key(5), 6)
    found = in_numpy.sent(own, named, key, secure=secure, compress=settings.compress)
    return wire.pack(found), expected


@pytest.mark.parametrize("way", WAYS)
def test_a_contribution_within_its_bounds_becomes_the_same_message(way: str):
    found, expected = both(config(*WAYS[way]), contribution())
    assert {n: (v.dtype, v.shape) for n, v in found.items()} == {
        n: (v.dtype, v.shape) for n, v in expected.items()
    }
    for name, vector in expected.items():
        if way in EXACT:
            np.testing.assert_array_equal(found[name], vector)
        elif vector.dtype.kind == "f":
            np.testing.assert_allclose(found[name], vector, rtol=1e-5, atol=1e-6)
        else:
            levels = np.abs(found[name].astype(np.int64) - vector.astype(np.int64))
            # One more or less, where a number lies at the very edge of what its chance rounds up.
            assert (levels > 0).mean() < 0.1
            assert np.median(levels) == 0


@pytest.mark.parametrize(
    "own",
    [
        contribution(scale=50.0),
        contribution(count=(150, 77, 90)),
        contribution(scale=50.0, count=(2000, 1, 1)),
        contribution()._replace(domain_loss=np.array([5000.0, 0, -9000.0], np.float32)),  # type: ignore[arg-type]
    ],
    ids=["long", "many", "both", "losses"],
)
def test_what_is_beyond_its_bounds_is_brought_there_alike(own: ClientSum):
    settings = config(*SECURE)
    found, expected = (vectors["int32"] for vectors in both(settings, own))
    size = sum(leaf.size for leaf in own.weighted_delta.values())
    np.testing.assert_allclose(found[:size], expected[:size], rtol=2e-6, atol=2)
    # Counts, whether it was left out and clipped are equal; so are the higher words of the others.
    np.testing.assert_array_equal(found[-5:], expected[-5:])
    assert expected[-1] == 1
    assert abs(int(found[size]) - int(expected[size])) <= 1


@pytest.mark.nan_input
def test_what_is_not_finite_is_left_out():
    own = contribution()
    own.weighted_delta["c"][0, 0, 0] = np.nan
    found, expected = (vectors["int32"] for vectors in both(config(*SECURE), own, round_=1))
    np.testing.assert_array_equal(found, expected)
    assert found[-2:].tolist() == [1, 0]
    assert not found[:-2].any()


@pytest.mark.parametrize("most", [1, 10, 200, 999, 2**24])
def test_counts_are_shared_out_alike(most: int):
    rng = np.random.default_rng(most)
    for high in (1, 3, 1000, 10**6, 2**24):
        count = rng.integers(0, high + 1, 9).astype(np.float32)
        np.testing.assert_array_equal(
            in_numpy.shared_out(count, most), shared_out(jnp.asarray(count), most)
        )


def test_a_report_has_no_update():
    settings = msgspec.structs.replace(config(*SECURE), compress=None)
    own = contribution()._replace(weighted_delta={}, beta=np.zeros((), np.float32))  # type: ignore[arg-type]
    found, expected = both(settings, own)
    np.testing.assert_array_equal(found["int32"], expected["int32"])
