# SPDX-License-Identifier: Apache-2.0
"""Distributionally Robust Federated Averaging (Deng et al. 2020): two exchanges a round.

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

from agnosticfl import tree
from agnosticfl.algorithm import agnostic_fedavg
from agnosticfl.channel import is_plain
from agnosticfl.client import num_steps
from agnosticfl.data.federated import FederatedData
from agnosticfl.engine import Broadcast, SumOverClients, reporters, server_key
from agnosticfl.errors import check
from agnosticfl.ledger import Bytes
from agnosticfl.model import Model, Params
from agnosticfl.precision import in_precision
from agnosticfl.rounds import Algorithm, Exchange, RoundInfo, Setting
from agnosticfl.server import ServerState, domain_scaling, mean_domain_loss, push, server_step
from agnosticfl.weights import DomainStats, projected_gradient

OTHERS = 2**32  # added to the seed for the draw of the second exchange's clients


class Walk(NamedTuple):
    """What a client of the first exchange gets, and trains as if it were its parameters."""

    params: Params  # w
    snapshot: Params  # w after the first t' local steps
    until: Array  # t'


def drfa(model: Model, data: FederatedData, **options: Any) -> Algorithm:
    """DRFA. Options as for `agnostic_fedavg`; λ moves by projected gradient unless said otherwise.

    `local_steps` is DRFA's τ. Without it, t' is drawn up to the steps of a client of mean size, and
    a client that takes fewer than t' sends its last model for the snapshot.
    """
    check(
        options.get("heldout") is None, "drfa has reports of its own, and none of held-out clients"
    )
    defaults: dict[str, Any] = {"normalisation": "batch", "weight_rule": projected_gradient(0.01)}
    settings: dict[str, Any] = {**defaults, **options, "exchange": two_exchanges}
    return agnostic_fedavg(model, data, **settings)


def two_exchanges(setting: Setting) -> Exchange:
    """Training with a snapshot by the clients of C_t, then losses at it by another draw."""
    work, seed, data = setting.work, setting.seed, setting.data
    check(
        is_plain(work.channel),
        "drfa has a second exchange, of losses alone, which a channel does not protect;"
        " choose another algorithm or no channel",
    )
    steps = work.local_steps or int(num_steps(work, np.ceil(data.sizes.mean()).astype(int)))
    walking = work._replace(model=_walking(work.model), optimizer=with_snapshot(work.optimizer))
    seam = setting.engine(walking, data, setting.sampler(seed), seed)
    others = reporters(work, data, setting.sampler(seed + OTHERS), seed)
    train = training_round(setting, seam.sum_over_clients, max(steps, 1))
    train = seam.compile(in_precision(train, setting.precision))

    @jax.jit
    def follow(after: ServerState, info: RoundInfo, total: Any) -> tuple[ServerState, RoundInfo]:
        loss = mean_domain_loss(total.domain_loss, total.domain_count)
        stats = DomainStats(loss, total.domain_count, after.window.mean)
        weights, rule_state = setting.weight_rule.update(after.rule_state, stats)
        info = info._replace(domain_weights=weights, mean_domain_loss=loss)
        return after._replace(domain_weights=weights, rule_state=rule_state), info

    def round(state: ServerState, cohorts: Any) -> tuple[ServerState, RoundInfo]:
        training, reporting = cohorts
        after, info, snapshot = train(state, training)
        return follow(after, info, others.domain_sum(snapshot, reporting))

    return Exchange(
        lambda t: (seam.cohort(t), others.cohort(t)),
        round,
        bytes_of_training,
        seam.settings,
        reporting_clients=others.clients_per_round,
    )


def training_round(
    setting: Setting, sum_over_clients: SumOverClients, steps: int
) -> Callable[[ServerState, Any], tuple[ServerState, RoundInfo, Params]]:
    """The first exchange: w_t and the snapshot, with λ as it was. `steps` is τ."""

    def round(state: ServerState, cohort: Any) -> tuple[ServerState, RoundInfo, Params]:
        t, w = state.round + 1, state.params
        alpha = domain_scaling(state.domain_weights, state.window.mean)
        until = jax.random.randint(server_key(setting.seed, t), (), 1, steps + 1)  # t'
        walk = Walk(w, w, until.astype(jnp.float32))
        return after_sum(state, alpha, sum_over_clients(Broadcast(walk, alpha), cohort))

    @jax.jit  # a part of the compiled round, or compiled by itself where clients are not
    def after_sum(
        state: ServerState, alpha: Array, total: Any
    ) -> tuple[ServerState, RoundInfo, Params]:
        t, w = state.round + 1, state.params
        mean_of = tree.divide(jnp.ones_like(total.beta), total.beta)
        delta, way, _ = tree.scale(mean_of, total.weighted_delta)
        params, opt_state, taken = server_step(setting.server_optimizer, delta, total.beta, state)
        window = push(state.window, total.domain_count)
        info = RoundInfo(
            domain_weights=state.domain_weights,
            alpha=alpha,
            mean_domain_loss=mean_domain_loss(total.domain_loss, total.domain_count),
            domain_count=total.domain_count,
            beta=total.beta,
            update_norm=tree.norm(tree.subtract(w, params)),
            left_out=total.left_out,
            step_taken=taken,
            channel={},
        )
        after = state._replace(params=params, opt_state=opt_state, window=window, round=t)
        return after, info, tree.subtract(w, way)  # Σ_k β^k w^{k,t'} / Σ_k β^k

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
    """The first exchange: w, α and t' down; two updates, β^k and N^k up."""
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
