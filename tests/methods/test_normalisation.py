# SPDX-License-Identifier: Apache-2.0
"""Where training ends with each way to divide the local loss: the table of docs/algorithms.md."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg
from agnosticfl.core.algorithm1 import local_loss
from agnosticfl.core.work import Batch, ClientWork
from agnosticfl.weights import fixed
from tests.helpers.problems import SGD, federated, linear, quadratic

# One client, a tenth of whose examples are of domain 1. The loss is (x − w)² with x = 0 in domain 0
# and x = 1 in domain 1, so λ = (½, ½) has its optimum at w = ½, and FedAvg at w = 0.1.
DATA = federated([[0.0] * 360 + [1.0] * 40], [[0] * 360 + [1] * 40], num_domains=2)
RATE, ROUNDS, USED = 0.005, 128, 96


def end(normalisation: str, batch_size: int) -> float:
    """The mean of w over the last rounds, with steps of one size for all."""
    rate = RATE * (400 / batch_size if normalisation == "client" else 1)
    algorithm = agnostic_fedavg(
        quadratic(0.5), DATA, clients_per_round=1, batch_size=batch_size, weight_rule=fixed(),
        client_optimizer=optax.sgd(rate), normalisation=normalisation, init_domain_count=[360, 40],
    )  # fmt: skip
    assert algorithm.block is not None
    states, _ = algorithm.block(algorithm.init())  # 128 rounds in one call
    assert len(states.round) == ROUNDS
    return float(np.mean(states.params["w"][-USED:]))


def expected_share(batch_size: int) -> float:
    """What `batch` makes of λ_1 = ½: E of 9 k / (9 k + B − k), k of B examples of domain 1."""
    from scipy.stats import binom

    k = np.arange(batch_size + 1)
    return float(np.sum(binom.pmf(k, batch_size, 0.1) * 9 * k / (9 * k + batch_size - k)))


@pytest.mark.parametrize(
    "batch_size",
    [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(16, marks=pytest.mark.slow)],
)
def test_only_the_sum_over_a_batch_bends_the_weights_towards_the_counts(batch_size: int):
    bent = expected_share(batch_size)  # 0.100, 0.266 and 0.423
    assert bent < 0.43
    assert end("batch", batch_size) == pytest.approx(bent, abs=0.02)
    for normalisation in ("client", "unbiased"):
        assert end(normalisation, batch_size) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("weight", "bent"), [(0.5, 0.25), (0.95, 0.33)])
def test_what_a_weight_acts_as_on_adult(weight: float, bent: float):
    """413 of 32,561 examples are the rare domain's, and 32 are in a batch.

    The loss is 1 for them and 0 for the others, so that of a batch is the share of the step that
    they get.
    """
    from scipy.stats import binom

    rare, size = 413 / 32561, 32
    alpha, key = jnp.array([(1 - weight) / (1 - rare), weight / rare]), jax.random.key(0)

    def share(normalisation: str, number: int) -> float:
        domain = jnp.arange(size) < number
        batch = Batch({"x": domain.astype(jnp.float32)}, domain.astype(jnp.int32), jnp.ones(size))
        work = ClientWork(linear(), SGD, 2, size, normalisation=normalisation)
        one = jnp.float32(1)  # β^k / n_k is 1 for a client with the shares of all data
        return float(local_loss(work, {"w": one}, batch, alpha, one, one, key))

    def mean(normalisation: str) -> float:
        shares = [share(normalisation, number) for number in range(size + 1)]
        return float(binom.pmf(np.arange(size + 1), size, rare) @ shares)

    assert mean("batch") == pytest.approx(bent, abs=0.005)
    assert mean("unbiased") == pytest.approx(weight, rel=1e-4)
