# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1, Agnostic Federated Averaging (Ro et al. 2021), and FedAvg as the same round.

The server's half is `agnostic_round` below, nearly line by line; the client's half is `client.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from agnosticfl import engine as engines
from agnosticfl import tree
from agnosticfl.channel import PLAIN, Channel, ChannelBuilder, is_plain, plain
from agnosticfl.client import ClientWork, check_work, contribution_shapes
from agnosticfl.cohorts import Cohorts, uniform_cohorts
from agnosticfl.data.federated import FederatedData, only_domain
from agnosticfl.engine import (
    Blocks,
    Broadcast,
    EngineBuilder,
    SumOverClients,
    server_key,
    with_unit_alpha,
)
from agnosticfl.errors import check
from agnosticfl.heldout import follow_heldout
from agnosticfl.ledger import bytes_per_client
from agnosticfl.model import Model
from agnosticfl.precision import in_precision
from agnosticfl.rounds import Algorithm, Exchange, RoundInfo, Setting
from agnosticfl.server import (
    ServerState,
    domain_scaling,
    init_state,
    mean_domain_loss,
    push,
    server_step,
)
from agnosticfl.weights import (
    DomainStats,
    WeightRule,
    exponentiated_gradient,
    fixed,
    proportional,
)


def agnostic_round(
    sum_over_clients: SumOverClients,
    server_optimizer: optax.GradientTransformation,
    weight_rule: WeightRule,
    channel: Channel = PLAIN,
    seed: int = 0,
) -> Callable[[ServerState, Any], tuple[ServerState, RoundInfo]]:
    """Procedure SERVER of Algorithm 1: the body of its loop over rounds t."""
    if channel.unit_alpha:
        sum_over_clients, channel = with_unit_alpha(sum_over_clients, channel)

    def round(state: ServerState, cohort: Any) -> tuple[ServerState, RoundInfo]:
        alpha = domain_scaling(state.domain_weights, state.window.mean)  # α = λ / mean_r N
        encoded = sum_over_clients(Broadcast(state.params, alpha, state.channel), cohort)
        return after_sum(state, alpha, encoded)

    @jax.jit  # a part of the compiled round, or compiled by itself where clients are not
    def after_sum(state: ServerState, alpha: Array, encoded: Any) -> tuple[ServerState, RoundInfo]:
        t = state.round + 1
        total, next_channel, report = channel.decode(state.channel, encoded, server_key(seed, t))
        # `total` is Σ_k (β^k Δ^k, β^k, L^k, N^k)
        mean_of = tree.divide(jnp.ones_like(total.beta), total.beta)
        delta = tree.scale(mean_of, total.weighted_delta)  # Σ_k β^k Δ^k / Σ_k β^k
        params, opt_state, taken = server_step(server_optimizer, delta, total.beta, state)  # w_t
        loss = mean_domain_loss(total.domain_loss, total.domain_count)  # L = Σ_k L^k / N_t
        window = push(state.window, total.domain_count)  # N_{t-r+1} … N_t
        stats = DomainStats(loss, total.domain_count, window.mean)
        weights, rule_state = weight_rule.update(state.rule_state, stats)  # λ_t ∝ λ exp(γ_λ L)
        info = RoundInfo(
            domain_weights=weights,
            alpha=alpha,
            mean_domain_loss=loss,
            domain_count=total.domain_count,
            beta=total.beta,
            update_norm=tree.norm(tree.subtract(state.params, params)),
            left_out=total.left_out,
            step_taken=taken,
            channel=report,
        )
        after = ServerState(params, opt_state, weights, rule_state, window, t, next_channel)
        return after, info

    return round


def agnostic_fedavg(
    model: Model,
    data: FederatedData,
    *,
    clients_per_round: int,
    batch_size: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation | None = None,
    weight_rule: WeightRule | None = None,
    window_size: int = 1,
    epochs: int = 1,
    normalisation: str = "client",
    init_domain_weights: Sequence[float] | None = None,
    init_domain_count: Sequence[float] | None = None,
    seed: int = 0,
    cohorts: Cohorts | None = None,
    engine: EngineBuilder = engines.auto,
    channel: ChannelBuilder = plain,
    heldout: FederatedData | None = None,
    precision: str = "float32",
    local_steps: int | None = None,
    exchange: Callable[[Setting], Exchange] | None = None,
) -> Algorithm:
    """Agnostic Federated Averaging: min over w of the largest mean loss of any domain.

    Args:
      clients_per_round: c.
      batch_size: B.
      client_optimizer: local steps with rate γ_w (the paper: `optax.sgd`).
      server_optimizer: takes the mean update as gradient; default `optax.sgd(1.0)`, plain
        averaging.
      weight_rule: how λ moves; default `exponentiated_gradient(0.01)`.
      window_size: r, the number of rounds over which the domain counts are averaged for α.
      epochs: E.
      normalisation: of the local loss, `"client"` (the paper's) or `"batch"`; see
        `client.local_loss`.
      init_domain_weights: λ_0; default uniform.
      init_domain_count: N_0; default ones.
      seed: everything random (w_0, cohorts, order of examples, dropout) follows from it.
      cohorts: how the clients of a round are chosen; default `uniform_cohorts()`.
      engine: how the sum over clients is computed.
      channel: what happens to a contribution on its way into the sum; see `channel`.
      heldout: clients who do not train. If given, λ follows their losses; see `heldout`.
      precision: of the factors of matrix products, `"float32"`, `"tf32"` or `"bf16"`; see
        `precision`.
      local_steps: the most local steps that a client takes; default all of its E epochs.
      exchange: how the server talks to its clients; default `one_exchange`, the paper's.
    """
    check(seed >= 0, f"seed is {seed}; it must be a whole number ≥ 0")
    server_optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    weight_rule = exponentiated_gradient(0.01) if weight_rule is None else weight_rule
    p = data.num_domains
    way = channel(contribution_shapes(model, p))
    work = check_work(
        ClientWork(model, client_optimizer, p, batch_size, epochs, normalisation, way, local_steps)
    )
    draw = cohorts or uniform_cohorts()
    rounds = (exchange or one_exchange)(
        Setting(
            work,
            server_optimizer,
            weight_rule,
            data,
            lambda seed: draw(data, clients_per_round, seed),
            in_precision(engine, precision),
            precision,
            seed,
        )
    )

    def init() -> ServerState:
        return init_state(
            jax.jit(model.init)(jax.random.key(seed)),
            server_optimizer,
            weight_rule,
            p,
            window_size,
            init_domain_weights,
            init_domain_count,
            way.init(),
        )

    algorithm = Algorithm(
        init,
        rounds.cohort,
        rounds.round,
        clients_per_round,
        rounds.bytes_per_client,
        way,
        rounds.settings,
        rounds.block,
        rounds.reporting_clients,
    )
    if heldout is None:
        return algorithm
    check(is_plain(way), "held-out clients report in the clear: the channel must be plain")
    names = ", ".join(data.domains)
    check(heldout.domains == data.domains, f"held-out domains differ from the training's: {names}")
    number = min(clients_per_round, heldout.num_clients)
    sampler = draw(heldout, number, seed)
    reporters = engines.reporters(work, heldout, sampler, seed)
    reporters = reporters._replace(domain_sum=in_precision(reporters.domain_sum, precision))
    return follow_heldout(algorithm, reporters, weight_rule)


def one_exchange(setting: Setting) -> Exchange:
    """Algorithm 1's: w and α go down, Σ_k (β^k Δ^k, β^k, L^k, N^k) comes up."""
    work, seed = setting.work, setting.seed
    seam = setting.engine(work, setting.data, setting.sampler(seed), seed)
    round = agnostic_round(
        seam.sum_over_clients, setting.server_optimizer, setting.weight_rule, work.channel, seed
    )
    round = in_precision(round, setting.precision)
    return Exchange(
        seam.cohort,
        seam.compile(round),
        lambda state: bytes_per_client(state, work.channel),
        seam.settings,
        None if seam.blocks is None else _block(seam.blocks, round),
    )


def _block(blocks: Blocks, round: Callable[..., Any]) -> Callable[[ServerState], Any]:
    compiled = blocks.compile(round)
    return lambda state: compiled(state, blocks.cohorts(int(state.round) + 1))


def fedavg(model: Model, data: FederatedData, **options: Any) -> Algorithm:
    """FedAvg (uniform): every example counts the same. Options as for `agnostic_fedavg`.

    λ follows the counts, so α is one constant, and with `batch` normalisation a local step is plain
    gradient descent on the batch's mean loss.
    """
    defaults: dict[str, Any] = {"normalisation": "batch", "weight_rule": proportional()}
    return agnostic_fedavg(model, data, **{**defaults, **options})


def fedavg_target(model: Model, data: FederatedData, target: str, **options: Any) -> Algorithm:
    """FedAvg (target-only): trains on the examples of one domain, of the clients that have any."""
    part = only_domain(data, target)
    defaults: dict[str, Any] = {"normalisation": "batch", "weight_rule": fixed()}
    settings: dict[str, Any] = {
        "clients_per_round": min(options["clients_per_round"], part.num_clients),
        "init_domain_weights": [float(name == target) for name in data.domains],
    }
    return agnostic_fedavg(model, part, **{**defaults, **options, **settings})
