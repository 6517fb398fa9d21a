# SPDX-License-Identifier: Apache-2.0
"""Who takes part: every cohort is different clients and a function of (seed, t)."""

from collections.abc import Callable

import numpy as np
import pytest

from agnosticfl.core.sampling import (
    Sampler,
    available,
    day_and_night,
    over_selected,
    stratified,
    uniform,
)
from agnosticfl.errors import BadInput

CLIENTS, C = 1000, 20
DOMAIN = np.repeat([0, 1], [900, 100])

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": lambda seed: uniform(CLIENTS, C, seed),
    "stratified": lambda seed: stratified(DOMAIN, [0.5, 0.5], C, seed),
    "available": lambda seed: available(CLIENTS, C, seed, day_and_night(0.1, 0.9)),
    "over-selected": lambda seed: over_selected(lambda c: uniform(CLIENTS, c, seed), C, seed),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_a_cohort_is_c_clients_and_a_function_of_seed_and_round(
    make: Callable[[int], Sampler],
) -> None:
    sample = make(3)
    cohorts = [sample(t) for t in range(50)]
    for cohort in cohorts:
        assert len(np.unique(cohort)) == len(cohort) == C
        assert cohort.min() >= 0
        assert cohort.max() < CLIENTS
    backwards = [make(3)(t) for t in reversed(range(50))]
    np.testing.assert_array_equal(cohorts, backwards[::-1])
    assert len({tuple(sorted(cohort)) for cohort in cohorts}) == 50
    assert set(make(4)(0)) != set(cohorts[0])
    assert len(np.unique(cohorts)) > 400  # 1000 draws of 1000 clients reach most of them


def test_every_client_comes_about_as_often():
    sample = uniform(20, 5, seed=0)
    drawn = np.bincount(np.concatenate([sample(t) for t in range(2000)]), minlength=20)
    # 2000 · 5 / 20 = 500 each, with standard deviation √(2000 · ¼ · ¾) = 19.4
    assert np.all(np.abs(drawn - 500) < 5 * 19.4)


def test_stratified_keeps_the_shares() -> None:
    for t in range(20):
        cohort = stratified(DOMAIN, [0.25, 0.75], 10, seed=0)(t)
        # 2.5 and 7.5 clients: the same remainder, so the first domain is rounded up.
        assert np.bincount(DOMAIN[cohort]).tolist() == [3, 7]
    assert set(DOMAIN[stratified(DOMAIN, [0, 1], 100, seed=0)(0)]) == {1}


def test_stratified_draws_every_client_of_a_domain_equally_often() -> None:
    sample = stratified(np.array([0, 1, 0, 1, 1]), [1, 1], 2, seed=0)
    counts = np.bincount(np.concatenate([sample(t) for t in range(3000)]), minlength=5)
    # 3000 draws of each domain: 1/2 of them each of clients 0 and 2, 1/3 each of the others.
    np.testing.assert_allclose(counts, [1500, 1000, 1500, 1000, 1000], atol=120)


def test_the_chance_swings_once_a_day() -> None:
    chance = day_and_night(0.2, 0.8, peak_hours=(0.0, 12.0), client_domain=np.array([0, 1]))
    both = np.array([0, 1])
    np.testing.assert_allclose(chance(0.0, both), [0.8, 0.2])
    np.testing.assert_allclose(chance(6.0, both), [0.5, 0.5])
    np.testing.assert_allclose(chance(24.0, both), [0.8, 0.2])


def test_a_domain_trains_when_it_is_available() -> None:
    domain = np.repeat([0, 1], 500)
    chance = day_and_night(0.1, 0.9, peak_hours=(0.0, 12.0), client_domain=domain)
    sample = available(CLIENTS, C, 0, chance, minutes_per_round=720)  # midnight, noon, midnight …
    night = np.mean([domain[sample(t)].mean() for t in range(0, 400, 2)])
    noon = np.mean([domain[sample(t)].mean() for t in range(1, 400, 2)])
    # At midnight 450 clients of domain 0 and 50 of domain 1 are there.
    np.testing.assert_allclose([night, noon], [0.1, 0.9], atol=0.02)


def test_available_clients_are_equally_likely() -> None:
    sample = available(5, 2, 0, lambda _, clients: np.where(clients == 4, 0.0, 1.0))
    counts = np.bincount(np.concatenate([sample(t) for t in range(4000)]), minlength=5)
    np.testing.assert_allclose(counts, [2000, 2000, 2000, 2000, 0], atol=150)


def test_a_cohort_asks_about_as_many_clients_as_it_needs() -> None:
    asked: list[int] = []

    def half(hour: float, clients: np.ndarray) -> np.ndarray:
        del hour
        asked.append(len(clients))
        return np.full(len(clients), 0.5)

    assert len(available(10**9, 50, 0, half)(0)) == 50
    assert sum(asked) <= 300


def test_too_few_available_clients_are_reported() -> None:
    sample = available(100, 3, 0, lambda _, clients: np.where(clients < 3, 1.0, 0.0))
    assert sorted(sample(7)) == [0, 1, 2]
    with pytest.raises(BadInput, match="round 7: only 3 of 100 clients are available"):
        available(100, 4, 0, lambda _, clients: np.where(clients < 3, 1.0, 0.0))(7)


def test_over_selection_selects_more_and_keeps_the_first() -> None:
    selected: list[int] = []

    def make(c: int) -> Sampler:
        selected.append(c)
        return lambda t: np.arange(c) + t

    sample = over_selected(make, 10, seed=0)
    assert selected == [13]
    assert set(sample(5)) < set(range(5, 18))
    kept = np.bincount(np.concatenate([over_selected(make, 10, 0)(0) for _ in range(2)]))
    assert sorted(kept[kept > 0].tolist()) == [2] * 10  # the same ten finish first again
    never_late = np.mean([0 in over_selected(make, 10, seed)(0) for seed in range(500)])
    np.testing.assert_allclose(never_late, 10 / 13, atol=0.06)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stratified(DOMAIN, [0.0, 0.0], C, 0), "shares"),
        (lambda: stratified(DOMAIN, [-1.0, 2.0], C, 0), "shares"),
        (lambda: stratified(DOMAIN, [0.0, 1.0], 101, 0), "domain 1 has 100 clients"),
        (lambda: available(10, 11, 0, day_and_night(0, 1)), "c must be from 1"),
        (lambda: day_and_night(0.5, 0.2), "chances from 0.5 to 0.2"),
        (lambda: day_and_night(0, 1, (1.0,), DOMAIN), "1 peak hours were given, but 2"),
        (lambda: over_selected(lambda c: uniform(10, c, 0), 5, 0, factor=0.9), "at least 1"),
        (lambda: over_selected(lambda c: uniform(10, c, 0), 9, 0), "it must be from 1 to"),
    ],
)
def test_impossible_cohorts_are_refused(call: Callable[[], Sampler], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()
