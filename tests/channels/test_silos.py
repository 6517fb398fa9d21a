# SPDX-License-Identifier: Apache-2.0
"""Silos that hold many owners of examples: noise and accounting for each, for one owner."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.channels.dp.clipping import SHARES
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.privacy.secret_cohorts import cohorts_of_silos, silos_of
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve, title
from agnosticfl.runs.run import run
from tests.helpers.problems import linear

pytest.importorskip("dp_accounting")

PLACE = np.repeat([0, 1, 2], [60, 30, 10])
NAMES = ("north", "south", "coast")


def test_every_silo_draws_its_share_in_secret():
    silos = silos_of(NAMES, PLACE, 10)
    assert [(s.name, len(s.owners), s.per_round) for s in silos] == [
        ("north", 60, 6), ("south", 30, 3), ("coast", 10, 1),
    ]  # fmt: skip
    sampler = cohorts_of_silos(Secrets(secret_of_a_test(0)), silos)(None, 10, 0)
    for t in range(20):
        cohort = sampler(t)
        assert len(set(cohort)) == 10
        assert np.bincount(PLACE[cohort]).tolist() == [6, 3, 1]
    np.testing.assert_array_equal(sampler(3), sampler(3))
    other = cohorts_of_silos(Secrets(secret_of_a_test(1)), silos)(None, 10, 0)
    assert any(set(other(t)) != set(sampler(t)) for t in range(5))


def test_a_cohort_that_silos_cannot_share_is_refused_with_one_that_they_can():
    """33, 33 and 34 owners and c = 10: each silo rounds 3.3 or 3.4 to 3."""
    with pytest.raises(BadInput, match=r"10 clients per round .* set clients_per_round = 9"):
        silos_of(NAMES, np.repeat([0, 1, 2], [33, 33, 34]), 10)


def test_each_silo_has_noise_for_its_own_owners():
    """Three silos each add noise z to their own sum: √3 z in all, and ε is that of z alone."""
    silos = silos_of(NAMES, PLACE, 10)
    like = contribution_shapes(linear(), 3)
    facts = RunFacts(like, 20, 10, 100, Secrets(secret_of_a_test(0)), silos)
    privacy = differential_privacy(facts, 4.0, 1e-5, quantile=0, silos="domain")
    assert privacy.silos is not None
    one = accounting.spent(privacy.budget, [Charge(privacy.scale.noise, 20)])
    assert 3.9 < one <= 4.0
    alone = differential_privacy(facts._replace(silos=None), 4.0, 1e-5, quantile=0)
    assert privacy.scale.noise == pytest.approx(alone.scale.noise, rel=0.01)  # the same rate, 0.1
    channel = privacy.channel(like)
    zero: Any = jax.tree.map(lambda leaf: jnp.zeros((1000, *leaf.shape), leaf.dtype), like)
    messages = jax.vmap(channel.encode, (None, 0, None))(channel.init(), zero, jax.random.key(0))
    decode = jax.vmap(lambda m: channel.decode(channel.init(), m, jax.random.key(0)).total)
    noise = np.asarray(decode(messages).weighted_delta["w"])
    unit = 100.0 / (SHARES.update + SHARES.within) ** 0.5  # clip · examples over its share
    assert np.std(noise) == pytest.approx(3**0.5 * privacy.scale.noise * unit, rel=0.1)


def test_a_run_names_both_units_and_what_each_silo_spent(tmp_path: Path):
    sets = ["engine=padded", "data.clients=60", "data.shares='0.6,0.4'", "evaluation_every=0"]
    everybody = build(resolve("synthetic-points", sets=sets)).data.train.num_clients
    sets += ["dp.epsilon=30.0", "dp.delta=1e-5", "dp.silos=domain"]
    config = resolve("synthetic-points", rounds=3, sets=[*sets, f"clients_per_round={everybody}"])
    assert title(config).endswith(", ε = 30 per owner")
    spent = run(config, tmp_path / "run")["privacy"]
    assert spent["unit"] == "owner of examples (patient) within a silo"
    assert spent["silo_as_a_whole"] == "not covered"
    measured = spent["measured"]["test"]  # those clients are owners, too
    assert (measured["unit"], measured["silo_as_a_whole"]) == (spent["unit"], "not covered")
    assert len(spent["silos"]) == 2
    assert max(own["epsilon"] for own in spent["silos"].values()) == spent["epsilon"]
    assert all(0 < own["epsilon"] <= 30 for own in spent["silos"].values())
