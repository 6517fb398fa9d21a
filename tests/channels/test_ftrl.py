# SPDX-License-Identifier: Apache-2.0
"""Correlated noise: what is released, what it costs, and who takes part when."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.channels.dp.ftrl import Strategy, correlated, find_strategy, most_of_each
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge
from agnosticfl.privacy.secret_cohorts import in_turns
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")
pytest.importorskip("jax_privacy")

ROUNDS, APART = 24, 6


@pytest.fixture(scope="module", params=["banded", pytest.param("buffered", marks=pytest.mark.slow)])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return find_strategy(request.param, ROUNDS, APART)


def matrix(strategy: Strategy) -> np.ndarray:
    """C, from what it does to one number."""
    column, memory = [strategy.first], strategy.memory()
    memory.push(np.ones(1))
    for _ in range(1, ROUNDS):
        column.append(float(np.ravel(memory.read())[0]))
        memory.push(np.zeros(1))
    rows, columns = np.indices((ROUNDS, ROUNDS))
    return np.where(rows >= columns, np.array(column)[np.abs(rows - columns)], 0)


def test_without_noise_the_sums_come_back(strategy: Strategy):
    release = correlated(lambda _sigma, _shares, size: np.zeros(size, np.int32), strategy)
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        total = rng.integers(-(2**20), 2**20, 50).astype(np.int32)
        # C x is rounded, by half a unit at most in each of the rounds that are mixed.
        np.testing.assert_allclose(release(total, np.array(1)), total, atol=5)


def test_the_noise_is_that_of_the_inverse_matrix_and_sums_over_rounds_have_less(strategy: Strategy):
    rng, sigma, size = np.random.default_rng(0), 10_000, 20_000
    release = correlated(
        lambda s, _shares, n: np.rint(rng.normal(size=n) * s).astype(np.int32), strategy
    )
    zero, found = np.zeros(size, np.int32), list[np.ndarray]()
    for _ in range(ROUNDS):
        found.append(release(zero, np.array(sigma)) / sigma)
    inverse = np.linalg.inv(matrix(strategy))
    deviations = np.linalg.norm(inverse, axis=1)
    np.testing.assert_allclose(np.std(found, axis=1), deviations, rtol=0.03)
    assert strategy.spread == pytest.approx(deviations[-1], rel=1e-4)
    # The model moves by sums over rounds. For the same ε independent noise has deviation
    # √(rounds of a client) per round, and √t times that in the sum over t rounds.
    sums = np.std(np.cumsum(found, axis=0), axis=1)
    alone = math.sqrt(strategy.participations) * np.sqrt(np.arange(1, ROUNDS + 1))
    worth = strategy.sensitivity * np.sqrt(np.mean(sums**2)) / np.sqrt(np.mean(alone**2))
    assert worth < 0.85


def test_no_client_that_keeps_its_distance_adds_more_than_was_counted(strategy: Strategy):
    """Every set of rounds that are APART or more apart, tried at random; all in one direction."""
    c, rng = matrix(strategy), np.random.default_rng(0)
    worst = 0.0
    for _ in range(2000):
        t, taken = int(rng.integers(APART)), np.zeros(ROUNDS)
        while t < ROUNDS:
            taken[t] = 1
            t += APART + int(rng.choice([0, 0, 0, 1, 2]))
        worst = max(worst, float(np.linalg.norm(c @ taken)))
    assert worst <= strategy.sensitivity * (1 + 1e-6)
    assert worst > 0.99 * strategy.sensitivity


@pytest.mark.parametrize("kind", ["banded", "buffered"])
def test_rounds_of_a_client_of_a_federation_cost_no_more_than_1_each(kind: str):
    """That is what it counts; however many there are, and whichever, if they are APART."""
    strategy = find_strategy(kind, ROUNDS, APART, counted_each=True)
    c, rng = matrix(strategy), np.random.default_rng(0)
    assert strategy.rows >= max(np.count_nonzero(c, axis=0))
    closest = 0.0
    for _ in range(2000):
        t, taken = int(rng.integers(APART)), np.zeros(ROUNDS)
        while t < ROUNDS and rng.random() < 0.9:
            taken[t] = 1
            t += APART + int(rng.choice([0, 0, 0, 1, 2]))
        cost = np.linalg.norm(c @ taken) ** 2
        assert cost <= taken.sum() * (1 + 1e-9)
        closest = max(closest, cost / max(taken.sum(), 1))
    assert closest > 0.99  # and no less than that for some


def test_the_same_noise_is_found_however_its_cost_is_counted():
    """A smaller C with the same draws is C with larger ones."""
    whole, each = (find_strategy("buffered", ROUNDS, APART, e) for e in (False, True))
    shrunk = each.first / whole.first
    assert shrunk < 0.95
    np.testing.assert_allclose(matrix(each), shrunk * matrix(whole), atol=1e-12)
    assert each.sensitivity == pytest.approx(shrunk * whole.sensitivity)
    assert each.spread == pytest.approx(whole.spread / shrunk)
    # The sensitivity that the library reckons is what the most of each comes to for all rounds.
    assert each.sensitivity**2 <= each.participations * (1 + 1e-9)


def test_columns_that_do_not_overlap_cost_their_own_norm():
    strategy = find_strategy("banded", ROUNDS, APART)
    assert most_of_each(matrix(strategy)[:, 0], APART) == pytest.approx(1, abs=1e-12)
    assert most_of_each(np.array([1.0, 1.0, 1.0, 1.0]), 2) == 5  # (1, 1, 2, 2) is 10 for two


def test_clients_take_turns():
    data = SimpleNamespace(num_clients=25)
    sampler = in_turns(data, 4, 0)
    last: dict[int, int] = {}
    for t in range(1, 200):
        cohort = sampler(t)
        assert len(set(cohort)) == 4
        for k in map(int, cohort):
            assert t - last.get(k, -100) >= 25 // 4
            last[k] = t
    assert len(last) == 25
    assert not np.array_equal(in_turns(data, 4, 1)(1), sampler(1))


def test_it_is_one_gaussian_release_and_noise_is_found_for_it():
    facts = RunFacts(contribution_shapes(linear(), 2), ROUNDS, 10, 60)
    privacy = differential_privacy(facts, 4.0, 1e-5, noise="banded")
    assert privacy.strategy is not None
    assert privacy.strategy.separation == APART
    spent = accounting.spent(privacy.budget, [Charge(privacy.scale.noise, ROUNDS)])
    assert 3.9 < spent <= 4.0
    once = accounting.sampled_gaussian(1.0, lambda _: 1.0, lambda *_: 0.0)
    wanted = once([Charge(privacy.scale.noise / privacy.strategy.sensitivity, 1)], 1e-5)
    assert spent == pytest.approx(wanted, rel=0.02)
    # Without sampling, independent noise costs as much as its rounds of one client.
    alone = once([Charge(privacy.scale.noise, privacy.strategy.participations)], 1e-5)
    assert spent >= 0.98 * alone


def private_toy(**options: Any) -> Any:
    sets = ["clients_per_round=10", "dp.epsilon=30.0", "dp.delta=1e-5", "dp.noise=banded"]
    sets += ["engine=padded", "checkpoint_every=2", *(f"{k}={v}" for k, v in options.items())]
    return resolve("toy", rounds=6, sets=sets)


def test_a_run_says_who_is_trusted_and_does_not_go_on(tmp_path: Path):
    spent = run(private_toy(), tmp_path / "whole")["privacy"]
    assert spent["trusted"] == "the server, with the sum"
    assert spent["noise"].startswith("banded")
    assert spent["rounds_between_two_of_a_client"] >= 1
    assert 0 < spent["epsilon"] <= 30
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        run(private_toy(), tmp_path / "run", should_stop=lambda: next(calls))
    with pytest.raises(BadInput, match=r"correlated noise cannot go on, .* start anew"):
        run(private_toy(), tmp_path / "run", resume=True)


def test_a_run_keeps_the_rounds_of_its_clients_as_far_apart_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    played: dict[int, set[int]] = {}

    def watched(*given: Any) -> Any:
        sampler = in_turns(*given)

        def sample(t: int) -> np.ndarray:
            cohort = sampler(t)
            played[t] = set(cohort.tolist())
            return cohort

        return sample

    monkeypatch.setattr("agnosticfl.runs.build_privacy.in_turns", watched)
    apart = run(private_toy(), tmp_path / "run")["privacy"]["rounds_between_two_of_a_client"]
    assert sorted(played) == list(range(1, 7))
    assert 1 < apart < 6
    for t, cohort in played.items():
        sooner = set[int]().union(*(played[s] for s in range(max(t - apart + 1, 1), t)))
        assert not cohort & sooner
    assert played[1] & played[1 + apart]


def test_clients_cannot_add_correlated_noise():
    facts = RunFacts(contribution_shapes(linear(), 2), ROUNDS, 10, 60)
    with pytest.raises(
        BadInput, match="'banded', which a server adds that is trusted with the sum"
    ):
        differential_privacy(facts, 4.0, 1e-5, noise="banded", mode="distributed")


def test_without_the_library_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
):
    import sys

    monkeypatch.setitem(sys.modules, "jax_privacy.matrix_factorization.toeplitz", None)
    with pytest.raises(BadInput, match=r"pip install 'agnosticfl\[ftrl\]'"):
        find_strategy.__wrapped__("banded", 4, 2)
