# SPDX-License-Identifier: Apache-2.0
"""The fair rivals as whole algorithms: each by its own formula, on every engine."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.core.channel import Channel
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.random import server_key
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.methods.base import Algorithm
from agnosticfl.methods.drfa import drfa
from agnosticfl.methods.q_fedavg import q_fedavg
from agnosticfl.registry import ENGINES, METHODS
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run
from agnosticfl.weights import projected_gradient
from tests.helpers.problems import SGD, federated, quadratic
from tests.helpers.rounds import FAULTS, THREE, of_three, rounds
from tests.helpers.runs import results


@pytest.mark.parametrize("engine", ENGINES.names())
def test_afl_takes_one_step_against_the_weighted_losses(engine: str):
    """One step per round is gradient descent on Σ_i λ_i L_i, however many epochs there are."""
    weights = np.array([0.3, 0.7])
    algorithm = agnostic_fedavg(
        quadratic(0.0), THREE, local_steps=1, epochs=4, weight_rule=projected_gradient(0.01),
        init_domain_weights=weights.tolist(), engine=ENGINES.get(engine), **of_three(),
    )  # fmt: skip
    state, info = rounds(algorithm, 1)
    gradient = weights @ [-2 * (1 + 2 + 1) / 3, -2 * (6 + 5) / 2]
    np.testing.assert_allclose(state.params["w"], -0.1 * gradient, rtol=1e-6)
    loss = np.array([(1 + 4 + 1) / 3, (36 + 25) / 2])
    np.testing.assert_allclose(info.mean_domain_loss, loss, rtol=1e-6)
    moved = weights + 0.01 * loss
    np.testing.assert_allclose(state.domain_weights, moved - (moved.sum() - 1) / 2, rtol=1e-5)


def local_path(x: float, start: float, steps: int) -> list[float]:
    """w after 0, 1, … steps of rate 0.1 on (x − w)²."""
    path = [start]
    for _ in range(steps):
        path.append(path[-1] - 0.1 * 2 * (path[-1] - x))
    return path


@pytest.mark.parametrize("engine", ENGINES.names())
def test_drfa_by_hand(engine: str):
    data = federated([[1.0], [6.0]], [[0], [1]], num_domains=2)
    settings = of_three(clients_per_round=2, init_domain_count=[1, 1])
    algorithm = drfa(
        quadratic(0.0), data, local_steps=3, epochs=5, weight_rule=projected_gradient(0.01),
        init_domain_weights=[0.25, 0.75], seed=4, engine=ENGINES.get(engine), **settings,
    )  # fmt: skip
    state = algorithm.init()
    w, weights, drawn = 0.0, np.array([0.25, 0.75]), []
    for t in range(1, 5):
        state, info = algorithm.round(state, algorithm.cohort(t))
        paths = np.array([local_path(x, w, 3) for x in (1.0, 6.0)])  # β^k is λ_i here
        drawn.append(int(jax.random.randint(server_key(4, t), (), 1, 4)))  # t', from 1 to τ
        snapshot, w = float(weights @ paths[:, drawn[-1]]), float(weights @ paths[:, 3])
        loss = np.array([(1 - snapshot) ** 2, (6 - snapshot) ** 2])
        moved = weights + 0.01 * loss
        weights = moved - (moved.sum() - 1) / 2
        np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)
        np.testing.assert_allclose(info.mean_domain_loss, loss, rtol=1e-4)
        np.testing.assert_allclose(state.domain_weights, weights, rtol=1e-5)
    assert len(set(drawn)) > 1


def test_drfa_asks_other_clients_for_their_losses():
    data = federated([[float(k)] for k in range(40)], [[0]] * 40, num_domains=1)
    algorithm = drfa(quadratic(), data, **of_three(clients_per_round=5, init_domain_count=[1]))
    first, second = algorithm.cohort(1)
    assert len(second.cohort.clients) == 5
    assert set(np.asarray(first.cohort.clients)) != set(np.asarray(second.cohort.clients))


def test_the_bytes_of_drfa_are_those_of_both_exchanges():
    algorithm = drfa(quadratic(), THREE, **of_three())
    state, w, p = algorithm.init(), 1, 2
    # w, α, t' down; two updates, β, N up. Then the snapshot down; L, N up. Three clients in each.
    down, up = (w + p + 1) + w, (2 * w + 1 + p) + 2 * p
    assert algorithm.bytes_per_round(state) == (3 * 4 * down, 3 * 4 * up)


def test_drfa_refuses_what_does_not_go_with_its_second_exchange():
    def channel(_: Any) -> Channel:
        nothing = jax.tree_util.Partial(lambda state, sent, key: sent)  # noqa: ARG005
        return Channel(lambda: (), nothing, lambda sent: sent, lambda *_: (None, (), {}))  # type: ignore[return-value]

    with pytest.raises(BadInput, match="drfa has a second exchange"):
        drfa(quadratic(), THREE, **of_three(channel=channel))
    with pytest.raises(BadInput, match="drfa has reports of its own"):
        drfa(quadratic(), THREE, **of_three(heldout=THREE))


@pytest.mark.parametrize(
    ("engine", "q"),
    [*((engine, 2.0) for engine in ENGINES.names()), ("padded", 0.0), ("padded", 0.5)],
)
def test_q_fedavg_by_its_formula(engine: str, q: float):
    """Δ_k = F_k^q L (w − w^k), h_k = q F_k^{q−1} ‖L (w − w^k)‖² + L F_k^q; w − Σ Δ_k / Σ h_k."""
    settings = of_three(init_domain_count=[1, 1], engine=ENGINES.get(engine))
    algorithm = q_fedavg(quadratic(0.0), THREE, q, learning_rate=0.1, **settings)
    state, _ = rounds(algorithm, 1)
    lipschitz = 1 / 0.1
    top, bottom = 0.0, 0.0
    for x in ([1.0, 2.0], [6.0], [1.0, 5.0]):
        loss, step = np.mean(np.square(x)), lipschitz * -0.1 * 2 * np.mean(x)
        share = len(x) / 5  # of the examples: FedAvg's weight
        top += share * loss**q * step
        bottom += share * (q * loss ** (q - 1) * step**2 + lipschitz * loss**q)
    np.testing.assert_allclose(state.params["w"], -top / bottom, rtol=1e-5)


def test_q_fedavg_with_q_0_is_fedavg():
    settings = of_three(batch_size=1, epochs=2, engine=padded_engine)
    one, _ = rounds(q_fedavg(quadratic(), THREE, 0.0, learning_rate=0.1, **settings), 3)
    other, _ = rounds(fedavg(quadratic(), THREE, **settings), 3)
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)


def test_a_larger_q_serves_the_worst_client_better():
    def worst(q: float) -> float:
        settings = of_three(engine=padded_engine)
        algorithm = q_fedavg(quadratic(3.0), THREE, q, learning_rate=0.1, **settings)
        return float((6.0 - rounds(algorithm, 60)[0].params["w"]) ** 2)

    losses = [worst(q) for q in (0.0, 1.0, 5.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.nan_input
@pytest.mark.parametrize("make", [drfa, q_fedavg])
@pytest.mark.parametrize("fault", [name for name, f in FAULTS.items() if f[0].num_clients < 10])
def test_no_input_makes_a_nan(fault: str, make: Any):
    data, changes, number = FAULTS[fault]
    own = {"q": 2.0, "learning_rate": 0.1} if make is q_fedavg else {}
    settings: dict[str, Any] = {"clients_per_round": data.num_clients, **changes, **own}
    algorithm: Algorithm = make(
        quadratic(),
        data,
        batch_size=2,
        client_optimizer=SGD,
        engine=padded_engine,
        **settings,
    )
    state = algorithm.init()
    for t in range(1, number + 1):
        state, info = algorithm.round(state, algorithm.cohort(t))
        for leaf in jax.tree.leaves((state, info)):
            assert not np.any(np.isnan(leaf))
        np.testing.assert_allclose(np.sum(state.domain_weights), 1, rtol=1e-5)


@pytest.mark.nan_input
@pytest.mark.parametrize("make", [drfa, q_fedavg])
def test_a_client_with_a_nan_is_left_out_and_counted(make: Any):
    bad = federated([[1, 2], [np.nan], [3]], [[0, 1], [1], [0]], num_domains=2)
    good = federated([[1, 2], [], [3]], [[0, 1], [], [0]], num_domains=2)
    own = {"q": 2.0, "learning_rate": 0.1} if make is q_fedavg else {}

    def one_round(data: FederatedData) -> tuple[Any, Any]:
        return rounds(
            make(quadratic(), data, **of_three(batch_size=2, engine=padded_engine), **own), 1
        )

    (state, info), (expected, _) = one_round(bad), one_round(good)
    assert info.left_out == 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state, expected)


REFERENCES = "{'centre -1'=0, 'centre -0.5'=0, 'centre 0.25'=0, 'centre 0.5'=0, 'centre 1'=0}"


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n != "fedavg-target"])
def test_every_algorithm_plays_a_round_of_a_task_and_counts_its_bytes(name: str):
    sets = ["engine='padded'", "clients_per_round=3", "epochs=2"]
    sets.append(f"algorithms.excess-risk.options.references={REFERENCES}")
    algorithm = build(resolve("toy", name, sets=sets)).algorithm
    state, info = algorithm.round(algorithm.init(), algorithm.cohort(1))
    assert np.isfinite(state.params["w"])
    assert info.step_taken
    cost = algorithm.bytes_per_round(state)
    more = 1 + 1 if name == "drfa" else 0  # t', and w for those who report
    assert cost.down == 3 * 4 * (1 + 5 + more)  # w, α of 5 domains
    assert cost.up >= 3 * 4 * (1 + 1 + 5)  # updates, β, N


def test_a_stopped_run_of_a_rival_goes_on_to_the_same_bits(tmp_path: Path):
    rule = (
        "{name='exponentiated_gradient', learning_rate=0.1, before=['normalised', 'optimistic'],"
        " after=[{name='mixed', share=0.1}, 'averaged']}"
    )
    sets = [f"algorithms.drfa.weight_rule={rule}", "engine='padded'", "clients_per_round=3"]
    config = resolve("toy", "drfa", rounds=4, sets=sets)
    summary = run(config, tmp_path / "whole")
    w, p = 1, 5  # 3 clients train and 3 report
    assert summary["bytes"] == {
        "down_per_round": 3 * 4 * ((w + p + 1) + w),
        "up_per_round": 3 * 4 * ((2 * w + 1 + p) + 2 * p),
        "paper_per_round": None,  # there is no formula for it in the paper
    }
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            config, tmp_path / "run",
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 2,
        )  # fmt: skip
    run(config, tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")
