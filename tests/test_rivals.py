# SPDX-License-Identifier: Apache-2.0
"""The fair rivals as whole algorithms: each by its own formula, on every engine."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.build import build, build_client_optimizer, build_optimizer
from agnosticfl.channel import Channel
from agnosticfl.client import proximal
from agnosticfl.compare import compare
from agnosticfl.config import ALGORITHMS, Config, resolve
from agnosticfl.data import FederatedData
from agnosticfl.drfa import drfa
from agnosticfl.engine import ENGINES, padded, server_key
from agnosticfl.errors import BadInput
from agnosticfl.experiment import Stopped, run
from agnosticfl.ledger import bytes_per_report
from agnosticfl.qfedavg import q_fedavg
from agnosticfl.rounds import Algorithm
from agnosticfl.weights import projected_gradient
from tests.problems import federated, quadratic
from tests.test_algorithm import FAULTS, rounds
from tests.test_experiment import results

# A client for each domain, and one with both: loss (x − w)².
DATA = federated([[1.0, 2.0], [6.0], [1.0, 5.0]], [[0, 0], [1], [0, 1]], num_domains=2)


def options(**changes: Any) -> dict[str, Any]:
    """All clients, whole batches, γ_w = 0.1, and a window that holds the true counts."""
    standard: dict[str, Any] = {
        "clients_per_round": 3,
        "batch_size": 5,
        "client_optimizer": optax.sgd(0.1),
        "init_domain_count": [3, 2],
    }
    return {**standard, **changes}


@pytest.mark.parametrize("engine", ENGINES)
def test_afl_takes_one_step_against_the_weighted_losses(engine: str):
    """One step a round is gradient descent on Σ_i λ_i L_i, however many epochs there are."""
    weights = np.array([0.3, 0.7])
    algorithm = agnostic_fedavg(
        quadratic(0.0), DATA, local_steps=1, epochs=4, weight_rule=projected_gradient(0.01),
        init_domain_weights=weights.tolist(), engine=ENGINES[engine], **options(),
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


@pytest.mark.parametrize("engine", ENGINES)
def test_drfa_by_hand(engine: str):
    data = federated([[1.0], [6.0]], [[0], [1]], num_domains=2)
    settings = options(clients_per_round=2, init_domain_count=[1, 1])
    algorithm = drfa(
        quadratic(0.0), data, local_steps=3, epochs=5, weight_rule=projected_gradient(0.01),
        init_domain_weights=[0.25, 0.75], seed=4, engine=ENGINES[engine], **settings,
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
    algorithm = drfa(quadratic(), data, **options(clients_per_round=5, init_domain_count=[1]))
    first, second = algorithm.cohort(1)
    assert algorithm.reporting_clients == 5
    assert set(np.asarray(first.cohort.clients)) != set(np.asarray(second.cohort.clients))


def test_the_bytes_of_drfa_are_those_of_both_exchanges():
    algorithm = drfa(quadratic(), DATA, **options())
    state, w, p = algorithm.init(), 1, 2
    assert algorithm.bytes_per_client(state) == (4 * (w + p + 1), 4 * (2 * w + 1 + p))
    # w, α, t' down; two updates, β, N up. Then the snapshot down; L, N up.
    assert (algorithm.reporting_clients, bytes_per_report(state)) == (3, (4 * w, 4 * 2 * p))


def test_drfa_refuses_what_does_not_go_with_its_second_exchange():
    def channel(_: Any) -> Channel:
        nothing = jax.tree_util.Partial(lambda state, sent, key: sent)  # noqa: ARG005
        return Channel(lambda: (), nothing, lambda sent: sent, lambda *_: (None, (), {}))  # type: ignore[return-value]

    with pytest.raises(BadInput, match="drfa has a second exchange"):
        drfa(quadratic(), DATA, **options(channel=channel))
    with pytest.raises(BadInput, match="drfa has reports of its own"):
        drfa(quadratic(), DATA, **options(heldout=DATA))


@pytest.mark.parametrize(
    ("engine", "q"), [*((engine, 2.0) for engine in ENGINES), ("padded", 0.0), ("padded", 0.5)]
)
def test_q_fedavg_by_its_formula(engine: str, q: float):
    """Δ_k = F_k^q L (w − w^k), h_k = q F_k^{q−1} ‖L (w − w^k)‖² + L F_k^q; w − Σ Δ_k / Σ h_k."""
    settings = options(init_domain_count=[1, 1], engine=ENGINES[engine])
    algorithm = q_fedavg(quadratic(0.0), DATA, q, learning_rate=0.1, **settings)
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
    settings = options(batch_size=1, epochs=2)
    one, _ = rounds(q_fedavg(quadratic(), DATA, 0.0, learning_rate=0.1, **settings), 3)
    other, _ = rounds(fedavg(quadratic(), DATA, **settings), 3)
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)


def test_a_larger_q_serves_the_worst_client_better():
    def worst(q: float) -> float:
        algorithm = q_fedavg(quadratic(3.0), DATA, q, learning_rate=0.1, **options())
        return float((6.0 - rounds(algorithm, 60)[0].params["w"]) ** 2)

    losses = [worst(q) for q in (0.0, 1.0, 5.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def two_steps(optimizer: optax.GradientTransformation) -> float:
    """w after a client's two steps on (3 − w)², from 1."""
    data = federated([[3.0]], [[0]], num_domains=1)
    settings = options(clients_per_round=1, epochs=2, init_domain_count=[1])
    algorithm = fedavg(quadratic(1.0), data, **{**settings, "client_optimizer": optimizer})
    return float(rounds(algorithm, 1)[0].params["w"])


def test_fedprox_pulls_back_to_what_the_client_got():
    w1 = 1 - 0.1 * 2 * (1 - 3)  # no pull yet: w is w_{t-1}
    w2 = w1 - 0.1 * (2 * (w1 - 3) + 0.5 * (w1 - 1))
    table = {"name": "sgd", "learning_rate": 0.1, "proximal": 0.5}
    assert two_steps(build_client_optimizer(table)) == pytest.approx(w2)


def test_clients_may_have_momentum():
    w1 = 1 - 0.1 * 2 * (1 - 3)
    w2 = w1 - 0.1 * (2 * (w1 - 3) + 0.9 * 2 * (1 - 3))
    table = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    assert two_steps(build_client_optimizer(table)) == pytest.approx(w2)


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
    plain, _ = rounds(fedavg(quadratic(0.0), DATA, **options()), 1)
    update = 0.0 - float(plain.params["w"])  # w_{t-1} − w_t of plain averaging
    with jax.numpy_dtype_promotion("standard"):  # Optax does not keep to the strict one
        state, _ = rounds(fedavg(quadratic(0.0), DATA, server_optimizer=server, **options()), 1)
    np.testing.assert_allclose(state.params["w"], -0.5 * step(update), rtol=1e-4)


@pytest.mark.nan_input
@pytest.mark.parametrize("make", [drfa, q_fedavg])
@pytest.mark.parametrize("fault", [name for name, f in FAULTS.items() if f[0].num_clients < 10])
def test_no_input_makes_a_nan(fault: str, make: Any):
    data, changes, number = FAULTS[fault]
    own = {"q": 2.0, "learning_rate": 0.1} if make is q_fedavg else {}
    settings: dict[str, Any] = {"clients_per_round": data.num_clients, **changes, **own}
    algorithm: Algorithm = make(
        quadratic(), data, batch_size=2, client_optimizer=optax.sgd(0.1), engine=padded, **settings
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
        return rounds(make(quadratic(), data, **options(batch_size=2, engine=padded), **own), 1)

    (state, info), (expected, _) = one_round(bad), one_round(good)
    assert info.left_out == 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state, expected)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n != "fedavg-target"])
def test_every_algorithm_plays_a_round_of_a_task_and_counts_its_bytes(name: str):
    sets = ["engine='padded'", "clients_per_round=3", "epochs=2"]
    algorithm = build(resolve("toy", name, sets=sets)).algorithm
    state, info = algorithm.round(algorithm.init(), algorithm.cohort(1))
    assert np.isfinite(state.params["w"])
    assert info.step_taken
    cost = algorithm.bytes_per_client(state)
    assert 4 * (1 + 5) <= cost.down <= 4 * (1 + 5 + 1)  # w, α of 5 domains; DRFA's t'
    assert cost.up >= 4 * (1 + 1 + 5)  # updates, β, N
    assert algorithm.reporting_clients == (3 if name == "drfa" else 0)


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


def compared(out: Path, names: str, **options: Any) -> list[Config]:
    """The configurations that a comparison would run."""
    ran: list[Config] = []

    def runner(config: Config, _: Any) -> dict[str, Any]:
        ran.append(config)
        return {"worst_domain": "centre 1"}

    compare("toy", out, runner, algorithms=names.split(","), seeds=1, **options)
    return ran


def test_a_comparison_runs_what_it_was_asked_for_in_the_tables_order(tmp_path: Path):
    ran = compared(tmp_path, "drfa,afa,fedavg-target,fedavg")
    assert [config.algorithm for config in ran] == ["fedavg", "fedavg-target", "afa", "drfa"]
    assert [config.target for config in ran] == [None, "centre 1", None, None]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ("afa,aff", {}, "unknown algorithm 'aff'; did you mean 'afl'|'afa'"),
        ("", {}, "unknown algorithm ''"),
        ("afa,fedavg-target", {}, "fedavg-target needs --target DOMAIN, or fedavg among"),
        ("afa,fedavg", {"target": "centre 1"}, "none of fedavg, afa takes a --target"),
        ("term", {"sets": ["weight_rule.learning_rate=2"]}, "has no effect on any of term"),
        ("cvar", {"sets": ["algorithms.cvar.weight_rule.level=2"]}, r"level \(θ\) is 2"),
        (
            "afa", {"sets": ["weight_rule.after=[{name='minimum_weight', lowest=0.3}]"]},
            "minimum weight is 0.3 for 5 domains",
        ),
        ("q-fedavg", {"sets": ["algorithms.q-fedavg.options.q=-1"]}, "q is -1"),
        ("q-fedavg", {"sets": ["algorithms.q-fedavg.options.p=1"]}, "unknown option 'p'"),
        ("q-fedavg", {"sets": ["algorithms.q-fedavg.options.q=x"]}, "is 'x'; it must be a number"),
        ("afa", {"sets": ["options.q=1"]}, "unknown option 'q' of algorithm 'afa'"),
        ("fedprox", {"sets": ["algorithms.fedprox.client_optimizer.proximal=-1"]}, r"\(μ\) is -1"),
        ("afa", {"sets": ["local_steps=0"]}, "local steps is 0; it must be at least 1"),
    ],
)  # fmt: skip
def test_bad_comparisons_are_refused_before_anything_runs(
    tmp_path: Path, names: str, changes: dict[str, Any], message: str
):
    with pytest.raises(BadInput, match=message):
        compared(tmp_path, names, **changes)


def test_l2_pulls_towards_zero():
    optimizer = build_client_optimizer({"name": "sgd", "learning_rate": 0.1, "l2": 0.5})
    w = jnp.array([2.0, -4.0])
    updates, _ = optimizer.update(jnp.array([1.0, 0.0]), optimizer.init(w), w)
    np.testing.assert_allclose(
        np.asarray(updates), [-0.1 * (1 + 0.5 * 2), -0.1 * 0.5 * -4], rtol=1e-6
    )
    with pytest.raises(BadInput, match=r"l2 strength \(ρ\) is -1"):
        build_client_optimizer({"name": "sgd", "learning_rate": 0.1, "l2": -1.0})


def test_a_proximal_strength_of_0_changes_nothing():
    w = {"w": jnp.float32(2.0)}
    transform = proximal(0.0)
    updates, _ = transform.update(w, transform.init(w), {"w": jnp.float32(5.0)})
    assert updates == w
