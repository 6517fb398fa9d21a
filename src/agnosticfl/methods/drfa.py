# SPDX-License-Identifier: Apache-2.0
"""Distributionally Robust Federated Averaging (Deng et al. 2020): two exchanges per round.

λ does not move by losses at w_{t-1}, but by losses at the mean of the clients' models after a
random number t' of local steps, which other clients measure and report in a second exchange. Where
DRFA draws clients by λ, clients are drawn here as for every other algorithm and weighted by β^k, so
that a client may hold many domains.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.algorithm1 import (
    domain_scaling,
    mean_update,
    step_model,
)
from agnosticfl.core.channel import is_plain
from agnosticfl.core.contribution import Broadcast, ClientSum, SumOverClients
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Model, Params
from agnosticfl.core.precision import in_precision
from agnosticfl.core.random import server_key
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.core.work import num_steps
from agnosticfl.engines.reporters import reporters
from agnosticfl.errors import check
from agnosticfl.methods.agnostic_rivals import PROJECTED
from agnosticfl.methods.base import Algorithm, Parts, method
from agnosticfl.methods.reporting import moved_by_reports, with_reports

OTHERS = 2**32  # added to the seed for the draw of the second exchange's clients


class Walk(NamedTuple):
    """What a client of the first exchange gets, and trains as if it were its parameters."""

    params: Params  # w
    snapshot: Params  # w after the first t' local steps
    until: Array  # t'


@method(
    "drfa",
    title="DRFA",
    paper="Deng et al. 2020",
    settings={
        "normalisation": "unbiased",
        "weights_follow": "train",
        "weight_rule": PROJECTED,
    },
    like="fedavg",
    secure=False,
)
def drfa(parts: Parts) -> Algorithm:
    """DRFA: training with a snapshot by the clients of C_t, then losses at it by another draw.

    `local_steps` is DRFA's τ. Without it, t' is drawn up to the steps of a client of mean size, and
    a client that takes fewer than t' sends its last model for the snapshot.
    """
    check(
        parts.heldout is None,
        "drfa has reports of its own, and none of held-out clients",
    )
    check(
        is_plain(parts.way),
        "drfa has a second exchange, of losses alone, which secure sums, dp and compress do not"
        " cover; choose another algorithm, such as 'afa', or leave them out",
    )
    work, data, seed = parts.work, parts.data, parts.seed
    steps = work.local_steps or int(num_steps(work, np.ceil(data.sizes.mean()).astype(int)))
    walking = work._replace(model=_walking(work.model), optimizer=with_snapshot(work.optimizer))
    engine = parts.engine_for(walking)
    sampler = parts.sampler(data, parts.clients_per_round, seed + OTHERS)
    others = reporters(work, data, sampler, seed)
    train = training_round(parts, engine.sum_over_clients, max(steps, 1))
    train = engine.compile(in_precision(train, parts.precision))

    move = moved_by_reports(parts.rule, others.channel, seed)

    def round(state: ServerState, cohorts: tuple[PyTree, PyTree]) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohorts
        state, info, snapshot = train(state, training)
        state, info, loss, _ = move(state, info, others.total(snapshot, (), reporting))
        return state, info._replace(mean_domain_loss=loss)

    return with_reports(parts, engine, others, round, bytes_of_training)


def training_round(
    parts: Parts, sum_over_clients: SumOverClients[PyTree], steps: int
) -> Callable[[ServerState, PyTree], tuple[ServerState, RoundInfo, Params]]:
    """The first exchange: w_t and the snapshot, with λ as it was. `steps` is τ."""

    def round(state: ServerState, cohort: PyTree) -> tuple[ServerState, RoundInfo, Params]:
        w = state.params
        alpha = domain_scaling(state.domain_weights, state.window.mean)
        until = jax.random.randint(server_key(parts.seed, state.round + 1), (), 1, steps + 1)  # t'
        walk = Walk(w, w, until.astype(jnp.float32))
        sent = Broadcast(walk, alpha, client_rate=state.client_rate)
        return server_half(state, alpha, sum_over_clients(sent, cohort))

    @jax.jit  # a part of the compiled round, or compiled by itself where clients are not
    def server_half(
        state: ServerState, alpha: Array, total: ClientSum
    ) -> tuple[ServerState, RoundInfo, Params]:
        walk: Walk = total.weighted_delta
        own = total._replace(weighted_delta=walk.params)
        after, info = step_model(parts.server_steps, state, alpha, own)
        way = mean_update(total._replace(weighted_delta=walk.snapshot))
        return after, info, tree.subtract(state.params, way)  # Σ_k β^k w^{k,t'} / Σ_k β^k

    return round


def with_snapshot(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Local steps on w; the snapshot follows w for the first t' of them, then stays."""

    def init(walk: Walk) -> Any:
        return optimizer.init(walk.params), jnp.zeros(())

    def update(gradient: Walk, state: Any, walk: Walk | None = None) -> tuple[Walk, Any]:
        assert walk is not None  # Optax lets it be left out, local steps do not
        own, taken = state
        updates, own = optimizer.update(gradient.params, own, walk.params)
        apart = tree.subtract(optax.apply_updates(walk.params, updates), walk.snapshot)
        nothing = jax.tree.map(jnp.zeros_like, apart)
        follow = tree.select(taken < walk.until, apart, nothing)
        return Walk(updates, follow, jnp.zeros(())), (own, taken + 1)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def bytes_of_training(state: ServerState) -> Bytes:
    """One client in the first exchange: w, α and t' down; two updates, β^k and N^k up."""
    w, alpha, number = state.params, state.domain_weights, np.zeros((), np.float32)
    count = alpha
    return Bytes(tree.num_bytes((w, alpha, number)), tree.num_bytes((w, w, number, count)))


def _walking(model: Model) -> Model:
    def init(key: Array) -> Walk:
        w = model.init(key)
        return Walk(w, w, jnp.zeros(()))

    return model._replace(
        init=init,
        per_example_loss=lambda walk, *inputs: model.per_example_loss(walk.params, *inputs),
        per_example_metrics=lambda walk, *inputs: model.per_example_metrics(walk.params, *inputs),
    )
