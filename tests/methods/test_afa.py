# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 as a whole: known vectors, properties, and inputs that broke other programs."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl import agnostic_fedavg, exponentiated_gradient
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Model
from agnosticfl.core.state import ServerState
from agnosticfl.errors import BadInput
from agnosticfl.methods.base import Algorithm
from agnosticfl.registry import ENGINES
from tests.helpers.problems import SGD, federated, linear, quadratic, random_federated
from tests.helpers.rounds import EMPTY, FAULTS, rounds

# The hand-checkable problem: loss x·w, w_0 = 4.
TWO_CLIENTS = federated(
    [[1, 2, 4, 3, 6, 1], [8, 10, 5]], [[1, 0, 0, 0, 2, 2], [1, 3, 1]], num_domains=4
)

EXAMPLES = 33  # of all clients of a random federation together


def two_client_algorithm(engine: str = "padded", **changes: Any) -> Algorithm:
    options: dict[str, Any] = {
        "clients_per_round": 2,
        "batch_size": 3,
        "client_optimizer": optax.sgd(1.0),
        "server_optimizer": SGD,
        "weight_rule": exponentiated_gradient(0.01),
        "window_size": 2,
        "init_domain_weights": [0.1, 0.2, 0.3, 0.4],
        "init_domain_count": [1, 2, 3, 4],
        "engine": ENGINES.get(engine),
    }
    return agnostic_fedavg(linear(), TWO_CLIENTS, **{**options, **changes})


@pytest.mark.parametrize("engine", ENGINES.names())
def test_one_round_by_hand(engine: str):
    state, info = rounds(two_client_algorithm(engine), 1)
    # α = λ / N = 0.1 for all, so Σ βΔ = 0.1 · Σ x = 4 and Σ β = 0.1 · 9; server rate 0.1.
    np.testing.assert_allclose(info.alpha, [0.1] * 4, rtol=1e-6)
    np.testing.assert_allclose(state.params["w"], 4 - 0.1 * (0.1 * 40) / (0.1 * 9), rtol=1e-6)
    np.testing.assert_allclose(state.params["w"], 3.5555556, rtol=1e-6)
    loss = 4 * np.array([(2 + 4 + 3) / 3, (1 + 8 + 5) / 3, (6 + 1) / 2, 10 / 1])
    np.testing.assert_allclose(info.mean_domain_loss, loss, rtol=1e-6)
    raised = np.array([0.1, 0.2, 0.3, 0.4]) * np.exp(0.01 * loss)
    np.testing.assert_allclose(state.domain_weights, raised / raised.sum(), rtol=1e-6)
    np.testing.assert_allclose(
        state.domain_weights, [0.08702461, 0.18604803, 0.2663479, 0.46057943], rtol=1e-6
    )
    np.testing.assert_array_equal(state.window.counts, [[1, 2, 3, 4], [3, 3, 2, 1]])
    assert state.round == 1


@given(st.integers(0, 1000))
def test_permuting_clients_changes_nothing(seed: int):
    data = random_federated(seed, examples=EXAMPLES)
    order = np.random.default_rng(seed).permutation(data.num_clients)
    other = _permute_clients(data, order)
    # The order of a client's examples is drawn by its number, so take full batches.
    a, b = (_one_round(d, batch_size=20) for d in (data, other))
    jax.tree.map(_close, a, b)


@given(st.integers(0, 1000))
def test_permuting_domains_permutes_results(seed: int):
    data = random_federated(seed, examples=EXAMPLES)
    order = np.random.default_rng(seed).permutation(data.num_domains)
    other = data._replace(domain=np.argsort(order)[data.domain].astype(np.int32))
    weights = np.array([0.5, 0.2, 0.3])
    a = _one_round(data, init_domain_weights=weights)
    b = _one_round(other, init_domain_weights=weights[order])
    _close(a.params["w"], b.params["w"])
    _close(np.asarray(a.domain_weights)[order], b.domain_weights)
    _close(np.asarray(a.window.counts)[:, order], b.window.counts)


@given(st.integers(0, 1000), st.sampled_from([1, 5, 11]))
def test_batches_of_a_linear_loss_change_nothing(seed: int, batch_size: int):
    """The gradient does not depend on w, so neither order nor size of batches matters."""
    data = random_federated(seed, examples=EXAMPLES)
    a = _one_round(data, model=linear(), batch_size=batch_size)
    b = _one_round(data, model=linear(), batch_size=100)
    jax.tree.map(_close, a, b)


@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_scaling_alpha_changes_nothing(seed: int, factor: float):
    """α's scale cancels: in the client's loss by β^k, in the average by Σ_k β^k."""
    data = random_federated(seed, examples=EXAMPLES)
    a = _one_round(data, init_domain_count=[1, 2, 3])
    b = _one_round(data, init_domain_count=[factor, 2 * factor, 3 * factor])
    _close(a.params["w"], b.params["w"], rtol=1e-4)
    _close(a.domain_weights, b.domain_weights)


@given(st.integers(0, 1000))
def test_one_domain_with_full_batches_is_exactly_fedavg(seed: int):
    data, algorithm = _one_domain(seed)
    state, w = algorithm.init(), 1.0
    for t in (1, 2):
        state, _ = _one_domain(0)[1].round(state, algorithm.cohort(t))
        w = _fedavg_by_hand(w, data, rate=0.1, epochs=2)
    # The same sums in double precision, and rounded once.
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)


@functools.cache
def _one_domain(seed: int) -> tuple[FederatedData, Algorithm]:
    data = random_federated(seed, num_domains=1, examples=EXAMPLES)
    return data, _algorithm(data, quadratic(), 11, epochs=2)


def _fedavg_by_hand(w: float, data: FederatedData, rate: float, epochs: int) -> float:
    """McMahan et al. 2017 for the loss (x − w)² with one batch a client: Σ_k n_k w^k / Σ_k n_k."""
    new = np.zeros(data.num_clients)
    for k, (start, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        new[k] = w
        for _ in range(epochs if end > start else 0):
            new[k] -= rate * 2 * (new[k] - np.mean(data.examples["x"][start:end], dtype=float))
    return float(np.sum(data.sizes * new) / np.sum(data.sizes))


@pytest.mark.nan_input
@pytest.mark.parametrize("engine", [name for name in ENGINES.names() if name != "auto"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_input_makes_a_nan(fault: str, engine: str):
    data, changes, number = FAULTS[fault]
    if engine == "reference":
        number = min(number, 5)  # it compiles nothing of a round, and is as slow as that
    options: dict[str, Any] = {"clients_per_round": data.num_clients, **changes}
    algorithm = agnostic_fedavg(
        quadratic(), data, batch_size=2, client_optimizer=SGD,
        engine=ENGINES.get(engine), **options,
    )  # fmt: skip
    state = algorithm.init()
    for t in range(1, number + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
        for leaf in jax.tree.leaves((state, info)):
            assert not np.any(np.isnan(leaf))
        assert np.isfinite(state.params["w"])
        np.testing.assert_allclose(np.sum(state.domain_weights), 1, rtol=1e-5)


@pytest.mark.nan_input
@pytest.mark.parametrize("engine", ENGINES.names())
def test_a_client_with_a_nan_is_left_out_whole_and_counted(engine: str):
    bad = federated([[1, 2], [np.nan], [3]], [[0, 1], [1], [0]], num_domains=2)
    good = federated([[1, 2], [], [3]], [[0, 1], [], [0]], num_domains=2)
    options: dict[str, Any] = {"clients_per_round": 3, "engine": ENGINES.get(engine)}
    options |= {"batch_size": 2, "client_optimizer": SGD}
    state, info = rounds(agnostic_fedavg(quadratic(), bad, **options), 1)
    expected, _ = rounds(agnostic_fedavg(quadratic(), good, **options), 1)
    assert info.left_out == 1
    jax.tree.map(_close, state, expected)


def test_a_round_without_weight_moves_neither_the_model_nor_its_momentum():
    optimizer = optax.sgd(1.0, momentum=0.9)
    algorithm = agnostic_fedavg(
        quadratic(), EMPTY, clients_per_round=3, batch_size=2, client_optimizer=SGD,
        server_optimizer=optimizer,
    )  # fmt: skip
    before = algorithm.init()
    state, info = algorithm.round(before, algorithm.cohort(1))
    assert not info.step_taken
    jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, before.opt_state)
    np.testing.assert_allclose(state.domain_weights, before.domain_weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients_per_round": 0}, r"clients per round \(c\) is 0; it must be from 1 to"),
        ({"clients_per_round": 3}, "the number of clients, 2"),
        ({"seed": -1}, "seed is -1; it must be a whole number ≥ 0"),
        ({"batch_size": 0}, r"batch size \(B\) is 0"),
    ],
)
def test_bad_values_are_refused_before_the_first_round(change: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        two_client_algorithm(**change)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    def final(seed: int) -> ServerState:
        return rounds(two_client_algorithm(seed=seed, clients_per_round=1), 5)[0]

    jax.tree.map(np.testing.assert_array_equal, final(3), final(3))
    assert final(3).params["w"] != final(4).params["w"]


def _one_round(
    data: FederatedData, model: Model | None = None, batch_size: int = 20, **options: Any
) -> ServerState:
    algorithm = _algorithm(data, model or quadratic(), batch_size, **options)
    # The data and where the rounds start are given to a round, so one program plays them all.
    program = _program(model or quadratic(), batch_size)
    return program.round(algorithm.init(), algorithm.cohort(1))[0]


@functools.cache
def _program(model: Model, batch_size: int) -> Algorithm:
    return _algorithm(random_federated(0, examples=EXAMPLES), model, batch_size)


def _algorithm(data: FederatedData, model: Model, batch_size: int, **options: Any) -> Algorithm:
    return agnostic_fedavg(
        model,
        data,
        clients_per_round=data.num_clients,
        batch_size=batch_size,
        client_optimizer=SGD,
        **options,
    )


def _permute_clients(data: FederatedData, order: np.ndarray) -> FederatedData:
    rows = [np.arange(data.num_examples)[data.offsets[k] : data.offsets[k + 1]] for k in order]
    flat = np.concatenate(rows)
    return data._replace(
        examples={"x": data.examples["x"][flat]},
        domain=data.domain[flat],
        offsets=np.concatenate([[0], np.cumsum(data.sizes[order])]),
    )


def _close(a: Any, b: Any, rtol: float = 2e-5) -> None:
    # Sums in another order differ in the last digits of float32.
    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)
