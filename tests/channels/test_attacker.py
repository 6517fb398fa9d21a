# SPDX-License-Identifier: Apache-2.0
"""An attacker who knows all but one client finds no more than is claimed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from agnosticfl import agnostic_fedavg
from agnosticfl.channels.dp import Privacy, RunFacts, differential_privacy
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.engines import padded_engine
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge
from tests.helpers.problems import federated, linear

pytest.importorskip("dp_accounting")


def audited_epsilon(
    privacy: Privacy, clients: int, cohort: int, rounds: int, delta: float, trials: int
) -> float:
    """A lower bound on ε, with confidence 0.95, from what an attacker sees of `trials` runs.

    A canary's update points up with all its might, or down; nobody else moves. The attacker looks
    at the noised updates of `rounds` rounds and tells which it was. Clopper and Pearson bound how
    often she is right; (ε, δ) bounds it too: true positives ≤ e^ε · false positives + δ.
    """
    seen = []
    for canary in (1e3, -1e3):
        data = federated([[canary]] + [[0.0]] * (clients - 1), [[0]] * clients, 1)
        algorithm = agnostic_fedavg(
            linear(), data, clients_per_round=cohort, batch_size=1, engine=padded_engine,
            client_optimizer=optax.sgd(1.0), channel=privacy.channel, seed=int(canary > 0),
        )  # fmt: skip
        times = range(trials * rounds)
        cohorts = jax.tree.map(lambda *x: np.stack(x), *(algorithm.cohort(t + 1) for t in times))
        state = algorithm.init()

        def one_round(t: Any, cohort: Any, algorithm: Any = algorithm, state: Any = state) -> Any:
            after, info = algorithm.round(state._replace(round=t), cohort)
            return (state.params["w"] - after.params["w"]) * info.beta  # the noised update

        noised = jax.jit(jax.vmap(one_round))(jnp.arange(len(times), dtype=jnp.int32), cohorts)
        seen.append(np.asarray(noised).reshape(trials, rounds).sum(axis=1))
    up, down = seen
    half = trials // 2
    # She is surest far out; but one in ten must lie there, or chance alone may hide what she knows.
    threshold = np.quantile(np.concatenate([up[:half], down[:half]]), 0.9)
    hits, wrong = (int(np.sum(side[half:] > threshold)) for side in (up, down))  # the other half
    number = trials - half
    true = stats.beta.ppf(0.025, hits, number - hits + 1) if hits else 0.0
    false = stats.beta.ppf(0.975, wrong + 1, number - wrong) if wrong < number else 1.0
    return math.log((true - delta) / false) if true > delta else 0.0


@pytest.mark.parametrize(
    ("cohort", "rounds", "noise"),
    [
        (4, 1, 2.0),
        pytest.param(2, 1, 1.0, marks=pytest.mark.slow),
        pytest.param(4, 3, 4.0, marks=pytest.mark.slow),
    ],
)
def test_an_attacker_finds_no_more_than_is_claimed(cohort: int, rounds: int, noise: float):
    clients, delta = 4, 1e-2
    facts = RunFacts(contribution_shapes(linear(), 1), rounds, cohort, clients)
    privacy = differential_privacy(
        facts, 100.0, delta, noise_multiplier=noise, quantile=0, loss=1e4
    )
    claimed = accounting.spent(privacy.budget, [Charge(noise, rounds)])
    found = audited_epsilon(privacy, clients, cohort, rounds, delta, trials=4000)
    assert 0.5 < found < claimed  # an attack that finds nothing would prove nothing
