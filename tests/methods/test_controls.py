# SPDX-License-Identifier: Apache-2.0
"""Controls and presets: what is left when λ does not move, and what else is held against AFA."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.channels.fixed_point import in_fixed_point
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.methods.agnostic_rivals import constant, fedminmax
from agnosticfl.methods.drfa import drfa
from agnosticfl.methods.excess_risk import excess_risk
from agnosticfl.methods.fednova import fednova
from agnosticfl.registry import ENGINES, METHODS
from agnosticfl.runs.build import build
from agnosticfl.runs.kept_models import file_of, read_params
from agnosticfl.runs.records import read_records
from agnosticfl.runs.references import find_references, write_references
from agnosticfl.runs.resolve import find_method, resolve
from agnosticfl.runs.run import Stopped, run
from agnosticfl.weights import exponentiated_gradient, projected_gradient
from tests.helpers.problems import federated, linear, quadratic
from tests.helpers.rounds import THREE, of_three, rounds
from tests.helpers.runs import results

options = functools.partial(of_three, engine=padded_engine)


def test_constant_lambda_is_algorithm_1_with_equal_domains():
    state, info = rounds(constant(quadratic(0.0), THREE, **options()), 3)
    np.testing.assert_allclose(state.domain_weights, [0.5, 0.5])
    np.testing.assert_allclose(info.alpha, [0.5 / 3, 0.5 / 2], rtol=1e-6)
    still = agnostic_fedavg(
        quadratic(0.0), THREE, weight_rule=exponentiated_gradient(0.0), **options()
    )
    other, _ = rounds(still, 3)  # AFA with γ_λ = 0
    np.testing.assert_allclose(state.params["w"], other.params["w"], rtol=1e-6)


def test_constant_lambda_takes_afa_s_rates_and_no_held_out_losses():
    sets = ["algorithms.afa.client_optimizer.learning_rate=0.3", "weights_follow='heldout'"]
    config = resolve("toy", "constant", sets=sets)
    assert config.client_optimizer["learning_rate"] == 0.3
    assert config.normalisation == "client"
    assert config.weights_follow == "train"
    assert config.weight_rule == {"name": "fixed"}


def test_training_on_one_domain_takes_fedavg_s_rates_unless_it_has_its_own():
    """Its steps are of FedAvg's size; AFA's rate may be ten times too large for them."""
    sets = ["algorithms.fedavg.client_optimizer.learning_rate=0.003"]
    assert resolve("toy", "fedavg-target", "centre 1", sets=sets).client_optimizer == {
        "name": "sgd", "learning_rate": 0.003,
    }  # fmt: skip
    sets.append("algorithms.fedavg-target.client_optimizer.learning_rate=0.004")
    own = resolve("toy", "fedavg-target", "centre 1", sets=sets)
    assert own.client_optimizer["learning_rate"] == 0.004


@pytest.mark.parametrize("engine", ["padded", "lanes", "reference"])
def test_fednova_by_hand(engine: str):
    """Batches of 1: τ = (2, 1, 2), τ̄ = Σ n τ / Σ n = (4 + 1 + 4) / 5 = 1.8."""
    algorithm = fednova(linear(0.0), THREE, **options(batch_size=1, engine=ENGINES.get(engine)))
    state, _ = rounds(algorithm, 1)
    # x·w has the gradient x: a client goes 0.1 Σ x, which is divided by its steps; shares n_k / 5.
    moved = 0.4 * 0.1 * (1 + 2) / 2 + 0.2 * 0.1 * 6 / 1 + 0.4 * 0.1 * (1 + 5) / 2
    np.testing.assert_allclose(state.params["w"], -1.8 * moved, rtol=1e-5)


def test_fednova_with_equal_steps_is_fedavg_and_steps_are_capped_as_for_all():
    same = options(batch_size=5)
    one, other = (rounds(make(quadratic(), THREE, **same), 3)[0] for make in (fednova, fedavg))
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)
    capped = options(batch_size=1, local_steps=1)
    one, other = (rounds(make(quadratic(), THREE, **capped), 3)[0] for make in (fednova, fedavg))
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)


def test_fednova_goes_through_a_secure_sum():
    secure = fednova(linear(0.0), THREE, **options(batch_size=1, channel=in_fixed_point(3)))
    clear = fednova(linear(0.0), THREE, **options(batch_size=1))
    np.testing.assert_allclose(
        rounds(secure, 1)[0].params["w"], rounds(clear, 1)[0].params["w"], rtol=1e-4
    )


def test_fedminmax_takes_one_step_on_all_examples_of_a_client():
    """Of a linear loss exactly, in batches of 1: w − γ Σ_i λ_i mean x_i, as one big step would."""
    algorithm = fedminmax(
        linear(0.0), THREE, init_domain_weights=[0.3, 0.7],
        weight_rule=projected_gradient(0.01), **options(batch_size=1),
    )  # fmt: skip
    state, _ = rounds(algorithm, 1)
    mean = np.array([(1 + 2 + 1) / 3, (6 + 5) / 2])
    np.testing.assert_allclose(state.params["w"], -0.1 * np.array([0.3, 0.7]) @ mean, rtol=1e-5)


def test_fedminmax_of_whole_clients_is_the_paper_s_step_for_any_loss():
    """θ − η Σ_k n_k/n ∇ Σ_a (n_{a,k}/n_k) (μ_a/ρ_a) r_{a,k}, with a loss whose gradient bends."""
    mu, x, domain = np.array([0.3, 0.7]), ([1.0, 2.0], [6.0], [1.0, 5.0]), ([0, 0], [1], [0, 1])
    algorithm = fedminmax(
        quadratic(0.0), THREE, init_domain_weights=mu.tolist(),
        weight_rule=projected_gradient(0.01), **options(batch_size=2),
    )  # fmt: skip
    state, _ = rounds(algorithm, 1)
    rho, step = np.array([3 / 5, 2 / 5]), 0.0
    for own, groups in zip(x, domain, strict=True):
        gradient = np.mean([mu[a] / rho[a] * -2 * v for v, a in zip(own, groups, strict=True)])
        step += len(own) / 5 * gradient
    np.testing.assert_allclose(state.params["w"], -0.1 * step, rtol=1e-5)


def test_excess_risk_moves_lambda_by_what_is_above_the_references():
    algorithm = excess_risk(
        quadratic(0.0), THREE, {"1": 30.0, "0": 1.5}, weight_rule=exponentiated_gradient(0.1),
        **options(),
    )  # fmt: skip
    state, info = rounds(algorithm, 1)
    # Losses (1 + 4 + 1) / 3 = 2 and (36 + 25) / 2 = 30.5: both 0.5 above, so λ stays.
    np.testing.assert_allclose(info.mean_domain_loss, [2.0, 30.5])  # reported as they are
    np.testing.assert_allclose(state.domain_weights, [0.5, 0.5], rtol=1e-6)


def test_excess_risk_does_not_give_all_to_a_domain_that_nobody_can_serve():
    """Domain 1 is two points apart, so its loss is at least 4; domain 0 is one point."""
    data = federated([[0.0], [3.0, 7.0]], [[0], [1, 1]], num_domains=2)
    settings = options(
        clients_per_round=2, init_domain_count=[1, 2], weight_rule=exponentiated_gradient(0.05)
    )
    plain, _ = rounds(agnostic_fedavg(quadratic(1.0), data, **settings), 300)
    fair, _ = rounds(excess_risk(quadratic(1.0), data, {"0": 0.0, "1": 4.0}, **settings), 300)
    # Equal losses: w² = (w − 5)² + 4, w = 2.9. Equal excess: w² = (w − 5)², w = 2.5.
    np.testing.assert_allclose(plain.params["w"], 2.9, atol=0.05)
    np.testing.assert_allclose(fair.params["w"], 2.5, atol=0.05)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", "excess-risk: no reference loss is given for centre -1, centre -0.5, "),
        ("{'centre 7'=1.0}", "unknown domain in the references of excess-risk 'centre 7'"),
        ("{'centre 1'='low'}", "references of excess-risk is"),
    ],
)
def test_bad_references_are_refused(given: str, message: str):
    with pytest.raises(BadInput, match=message):
        build(resolve("toy", "excess-risk", sets=[f"options.references={given}"]))
    with pytest.raises(BadInput, match="excess-risk needs the option 'references'"):
        resolve("toy", "excess-risk")


TOY = ["clients_per_round=10", "engine='padded'"]


def test_references_are_what_a_domain_alone_comes_to(tmp_path: Path):
    found = find_references(
        "toy", tmp_path, lambda config, out: run(config, out), rounds=20, sets=TOY
    )
    assert list(found) == list(build(resolve("toy", sets=TOY)).data.train.domains)
    for number, loss in enumerate(found.values()):
        ends = [r["loss"][number] for r in read_records(tmp_path / f"domain{number}")]
        assert loss == pytest.approx(np.mean(ends[-2:]))  # the last tenth
    file = write_references("toy", tmp_path, found, TOY)
    config = resolve(str(file), "excess-risk")
    assert config.options == {"references": found}
    assert config.clients_per_round == 10
    assert np.isfinite(rounds(build(config).algorithm, 1)[0].params["w"])


def test_references_of_held_out_clients_are_measured_on_them(tmp_path: Path):
    sets = ["weights_follow='heldout'", "rounds=3", "engine='padded'"]
    summaries: dict[str, Any] = {}

    def runner(config: Any, out: Path) -> dict[str, Any]:
        summaries[config.target] = run(config, out)
        return summaries[config.target]

    found = find_references("synthetic-points", tmp_path, runner, sets=sets)
    for domain, loss in found.items():
        assert loss == summaries[domain]["heldout"][domain]["loss"]
    with pytest.raises(BadInput, match="the data has no split 'heldout'"):
        find_references("toy", tmp_path / "toy", runner, sets=["weights_follow='heldout'"])


@pytest.mark.parametrize("make", [agnostic_fedavg, drfa])
def test_the_mean_model_is_the_mean_of_all_models_but_the_first(make: Any):
    algorithm = make(quadratic(0.0), THREE, mean_model=True, **options())
    state, seen = algorithm.init(), []
    for t in range(1, 6):
        state, _ = algorithm.round(state, algorithm.cohort(t))
        seen.append(float(state.params["w"]))
        np.testing.assert_allclose(state.mean_params["w"], np.mean(seen), rtol=1e-6)
    other, _ = rounds(make(quadratic(0.0), THREE, **options()), 5)
    np.testing.assert_array_equal(state.params["w"], other.params["w"])  # it changes nothing
    assert other.mean_params is None


def test_a_run_keeps_and_measures_the_mean_model_and_goes_on_with_it(tmp_path: Path):
    config = resolve("toy", "afl", rounds=6, sets=[*TOY, "mean_model=true"])
    summary = run(config, tmp_path / "whole")
    kept = read_params(file_of(tmp_path / "whole", "mean")).arrays["w"]
    path = [r["params"][0] for r in read_records(tmp_path / "whole")]
    np.testing.assert_allclose(kept, np.mean(path), rtol=1e-6)
    assert summary["mean"]["round"] == 6
    assert set(summary["mean"]["test"]) == set(summary["test"])
    assert summary["mean"]["test"] != summary["test"]
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        run(config, tmp_path / "run", should_stop=lambda: next(calls))
    run(config, tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    again = read_params(file_of(tmp_path / "run", "mean")).arrays["w"]
    np.testing.assert_array_equal(again, kept)


def test_fedavg_ignores_the_first_weights_of_a_task():
    """Round 1 is as round 2: α is one constant, whatever λ_0 and N_0 say."""
    for make in (fedavg, fednova):
        algorithm = make(
            quadratic(0.0),
            THREE,
            init_domain_weights=[0.9, 0.1],
            **options(init_domain_count=[1, 7]),
        )
        state, info = rounds(algorithm, 1)
        np.testing.assert_allclose(info.alpha[0], info.alpha[1], rtol=1e-6)
        plain, _ = rounds(make(quadratic(0.0), THREE, **options()), 1)
        np.testing.assert_allclose(state.params["w"], plain.params["w"], rtol=1e-6)


def test_who_uses_which_normalisation_and_which_estimator():
    """No method divides by the batch's own sum; AFL, DRFA and FedMinMax count presence.

    Whose steps are of FedAvg's size starts from FedAvg's rates, and nobody else does.
    """
    for name in METHODS.names():
        entry = find_method(name)
        normalisation = entry.settings.get("normalisation", "client")
        assert normalisation in ("client", "unbiased")
        assert (normalisation == "unbiased") == ("fedavg" in (name, entry.like))
        if entry.settings.get("weight_rule", {}).get("name") == "projected_gradient":
            assert entry.settings["weight_rule"]["absent"] == "presence"
    assert {"afl", "drfa", "fedminmax"} <= set(METHODS.names())


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n != "fedavg-target"])
def test_a_method_is_secure_if_it_takes_a_channel(name: str):
    """As its record says: all but DRFA, whose second exchange is in the clear."""
    references = ", ".join(f"'centre {c}'=0" for c in (-1, -0.5, 0.25, 0.5, 1))
    sets = [*TOY, "secure={name='simulate'}"]
    sets.append(f"algorithms.excess-risk.options.references={{{references}}}")
    config = resolve("toy", name, sets=sets)
    if find_method(name).secure:
        build(config)
    else:
        with pytest.raises(BadInput, match="second exchange"):
            build(config)
