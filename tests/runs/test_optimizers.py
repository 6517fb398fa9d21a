# SPDX-License-Identifier: Apache-2.0
"""Optimizers of clients and of the server, by their names."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import fedavg
from agnosticfl.core.optimizers import proximal
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.runs.optimizers import build_optimizer
from tests.helpers.problems import federated, quadratic
from tests.helpers.rounds import THREE, of_three, rounds

options = functools.partial(of_three, engine=padded_engine)


def two_steps(optimizer: optax.GradientTransformation) -> float:
    """w after a client's two steps on (3 − w)², from 1."""
    data = federated([[3.0]], [[0]], num_domains=1)
    settings = {"clients_per_round": 1, "epochs": 2, "init_domain_count": [1]}
    algorithm = fedavg(quadratic(1.0), data, **options(client_optimizer=optimizer, **settings))
    return float(rounds(algorithm, 1)[0].params["w"])


def test_fedprox_pulls_back_to_what_the_client_got():
    w1 = 1 - 0.1 * 2 * (1 - 3)  # no pull yet: w is w_{t-1}
    w2 = w1 - 0.1 * (2 * (w1 - 3) + 0.5 * (w1 - 1))
    table = {"name": "sgd", "learning_rate": 0.1, "proximal": 0.5}
    assert two_steps(build_optimizer(table, "client_optimizer")) == pytest.approx(w2)


def test_clients_may_have_momentum():
    w1 = 1 - 0.1 * 2 * (1 - 3)
    w2 = w1 - 0.1 * (2 * (w1 - 3) + 0.9 * 2 * (1 - 3))
    table = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    assert two_steps(build_optimizer(table, "client_optimizer")) == pytest.approx(w2)


# Server optimizers (Reddi et al. 2021) by their names: the first step for a mean update d.
SERVERS: dict[str, tuple[dict[str, Any], Any]] = {
    "momentum": ({"name": "sgd", "momentum": 0.9}, lambda d: d),
    "adam": ({"name": "adam", "eps": 0.1}, lambda d: d / (abs(d) + 0.1)),
    "yogi": (
        {"name": "yogi", "eps": 0.1},
        # v_1 = v_0 + (1 − b_2) sign(d² − v_0) d² with v_0 = 10^-6, both moments without their bias
        lambda d: (0.1 * d + 1e-6 * 0.9) / 0.1
        / (np.sqrt((1e-6 + 0.001 * d**2) / 0.001) + 0.1),
    ),
    "adagrad": (
        {"name": "adagrad", "initial_accumulator_value": 0.0, "eps": 0.0}, lambda d: np.sign(d),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_server_optimizers_by_name(name: str):
    table, step = SERVERS[name]
    server = build_optimizer({"learning_rate": 0.5, **table}, "server_optimizer")
    plain, _ = rounds(fedavg(quadratic(0.0), THREE, **options()), 1)
    update = 0.0 - float(plain.params["w"])  # w_{t-1} − w_t of plain averaging
    with jax.numpy_dtype_promotion("standard"):  # Optax does not keep to the strict one
        algorithm = fedavg(quadratic(0.0), THREE, **options(server_optimizer=server))
        state, _ = rounds(algorithm, 1)
    np.testing.assert_allclose(state.params["w"], -0.5 * step(update), rtol=1e-4)


def test_l2_pulls_towards_zero():
    optimizer = build_optimizer(
        {"name": "sgd", "learning_rate": 0.1, "l2": 0.5}, "client_optimizer"
    )
    w = jnp.array([2.0, -4.0])
    updates, _ = optimizer.update(jnp.array([1.0, 0.0]), optimizer.init(w), w)
    np.testing.assert_allclose(
        np.asarray(updates), [-0.1 * (1 + 0.5 * 2), -0.1 * 0.5 * -4], rtol=1e-6
    )
    with pytest.raises(BadInput, match="l2 of client_optimizer is -1"):
        build_optimizer({"name": "sgd", "learning_rate": 0.1, "l2": -1.0}, "client_optimizer")


def test_a_proximal_strength_of_0_changes_nothing():
    w = {"w": jnp.float32(2.0)}
    transform = proximal(0.0)
    updates, _ = transform.update(w, transform.init(w), {"w": jnp.float32(5.0)})
    assert updates == w
