# SPDX-License-Identifier: Apache-2.0
"""Every way to choose clients goes through the same contract, from a task's table to a round."""

from typing import Any

import numpy as np
import pytest

from agnosticfl.core.federated import main_domain
from agnosticfl.registry import SAMPLERS
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from tests.helpers.problems import federated

# 60 clients of domain 0, 20 of domain 1.
DATA = federated([[1.0]] * 80, [[0]] * 60 + [[1]] * 20, num_domains=2)
OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "stratified": {"shares": [0.5, 0.5]},
    "available": {"lowest": 0.2, "highest": 0.9, "peak_hours": [2, 14]},
}


def test_the_contract_covers_all():
    assert set(OPTIONS) == set(SAMPLERS.names())


@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("name", SAMPLERS.names())
def test_cohorts_are_c_different_clients_and_follow_from_seed_and_round(name: str, factor: float):
    cohorts = SAMPLERS.get(name)(**OPTIONS[name], over_selection=factor)
    one, same, other = (cohorts(DATA, 10, seed) for seed in (1, 1, 2))
    for t in range(1, 20):
        assert len(set(one(t).tolist())) == 10
        assert set(one(t).tolist()) <= set(range(80))
        np.testing.assert_array_equal(one(t), same(t))
    assert any(set(one(t).tolist()) != set(other(t).tolist()) for t in range(1, 20))


def test_who_trains_is_not_who_uses():
    """At 2 o'clock the first domain is awake, at 14 o'clock the second."""
    sample = SAMPLERS.get("available")(lowest=0.0, highest=1.0, peak_hours=[2, 14])(DATA, 10, 0)
    for hour, domain in ((2, 0), (14, 1), (26, 0)):
        assert np.mean(DATA.domain[sample(hour)] == domain) == 1.0


def test_a_task_names_its_sampling():
    sampling = "sampling={name='stratified', shares=[0,0,0,0,1]}"
    built = build(resolve("toy", sets=[sampling, "clients_per_round=10", "engine='reference'"]))
    for t in range(1, 4):
        clients = built.algorithm.cohort(t).clients
        assert len(set(clients.tolist())) == 10
        np.testing.assert_array_equal(main_domain(built.data.train)[clients], 4)
