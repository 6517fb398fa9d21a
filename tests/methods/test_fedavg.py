# SPDX-License-Identifier: Apache-2.0
"""FedAvg over all clients, and over those of one domain."""

import numpy as np
import optax

from agnosticfl import fedavg, fedavg_target
from tests.helpers.problems import federated, quadratic
from tests.helpers.rounds import rounds


def test_fedavg_is_the_mean_over_examples():
    """Full batches of (x − w)²: client k goes to w − 2γ(w − mean x), weighted by n_k."""
    data = federated([[1, 2, 3], [7]], [[0, 1, 1], [0]], num_domains=2)
    algorithm = fedavg(
        quadratic(0.0), data, clients_per_round=2, batch_size=5, client_optimizer=optax.sgd(0.1)
    )
    state, _ = rounds(algorithm, 1)
    np.testing.assert_allclose(state.params["w"], 0.1 * 2 * (1 + 2 + 3 + 7) / 4, rtol=1e-6)


def test_fedavg_weighs_a_domain_that_comes_back_like_any_other():
    """A domain that was absent from the whole window must not be ignored or favoured."""
    data = federated([[1.0], [5.0]], [[0], [1]], num_domains=2)
    algorithm = fedavg(
        quadratic(0.0), data, clients_per_round=1, batch_size=5, client_optimizer=optax.sgd(0.5)
    )
    state = algorithm.init()
    for t in range(1, 20):
        before = state.domain_weights / state.window.mean
        np.testing.assert_allclose(before, before[::-1], rtol=1e-6)  # α is one constant
        state, _ = algorithm.round(state, algorithm.cohort(t))


def test_fedavg_target_trains_on_one_domain_alone():
    data = federated([[1, 2, 30], [50], [4]], [[0, 0, 1], [1], [0]], num_domains=2)
    algorithm = fedavg_target(
        quadratic(0.0), data, "0", clients_per_round=3, batch_size=5,
        client_optimizer=optax.sgd(0.1),
    )  # fmt: skip
    state, info = rounds(algorithm, 1)
    assert algorithm.clients_per_round == 2  # the third has no example of it
    np.testing.assert_allclose(state.params["w"], 0.1 * 2 * (1 + 2 + 4) / 3, rtol=1e-6)
    np.testing.assert_array_equal(info.domain_count, [3, 0])
    np.testing.assert_array_equal(state.domain_weights, [1, 0])
