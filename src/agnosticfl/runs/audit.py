# SPDX-License-Identifier: Apache-2.0
"""An audit in one run: many canaries, each of which went one way or the other.

Whatever the attacker guesses, (ε, δ) bounds how often she can be right; that she was right so often
bounds ε from below (Steinke, Nasr and Jagielski 2023; for a Gaussian family, Mahloujifar, Melis and
Chaudhuri 2024), by `jax_privacy.auditing`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agnosticfl.channels.dp import RunFacts, differential_privacy
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.core.federated import from_arrays
from agnosticfl.core.model import Examples, Model, Params, from_functions
from agnosticfl.engines.lanes import lanes_engine
from agnosticfl.errors import require
from agnosticfl.methods.afa import agnostic_fedavg
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Charge

SIGNIFICANCE = 0.05
STRONG = 100.0  # a rate with which every canary is clipped


class Audited(NamedTuple):
    """What was claimed and what was found."""

    claimed: float
    one_run: float  # at least so much, whatever the mechanism
    gaussian: float  # at least so much, if it is Gaussian


def audit(canaries: int, epsilon: float, delta: float, rounds: int, seed: int = 0) -> Audited:
    """Trains on canaries alone, all of whom are in every round, and attacks what comes out."""
    auditing: Any = require("jax_privacy.auditing", "an audit", "ftrl")
    forward = np.random.default_rng(seed).integers(2, size=canaries) == 1
    facts = RunFacts(contribution_shapes(_model(canaries), 1), rounds, canaries, canaries)
    # A weight and a count of 1 are all that a canary has beside its update.
    privacy = differential_privacy(
        facts, epsilon, delta, quantile=0, clip=1.0, examples=1.0, loss=1.0
    )
    examples = {
        "k": np.arange(canaries, dtype=np.int32),
        "y": np.where(forward, 1.0, -1.0).astype(np.float32),
    }
    data = from_arrays(examples, np.arange(canaries), np.zeros(canaries, int))
    algorithm = agnostic_fedavg(
        _model(canaries), data, clients_per_round=canaries, batch_size=1, engine=lanes_engine,
        client_optimizer=optax.sgd(STRONG), channel=privacy.channel, init_domain_count=[canaries],
    )  # fmt: skip
    state, score = algorithm.init(), np.zeros(canaries)
    for t in range(1, rounds + 1):
        before = state.params["w"]
        state, info = algorithm.round(state, algorithm.cohort(t))
        score += np.asarray((state.params["w"] - before) * info.beta)
    judge = auditing.CanaryScoreAuditor(score[forward], score[~forward])
    strategy = auditing.Split(seed=seed)
    found = (
        float(bound(SIGNIFICANCE, delta, threshold_strategy=strategy))
        for bound in (judge.epsilon_one_run, judge.epsilon_one_run_fdp)
    )
    claimed = accounting.spent(privacy.budget, [Charge(privacy.scale.noise, rounds)])
    return Audited(claimed, *found)


def _model(canaries: int) -> Model:
    """w, [canaries]; the loss of canary k falls where w_k goes its way, as fast for all."""

    def init(key: jax.Array) -> Params:
        del key
        return {"w": jnp.zeros(canaries)}

    def loss(params: Params, examples: Examples) -> jax.Array:
        return -examples["y"] * params["w"][examples["k"]]

    return from_functions(init, loss)
