# SPDX-License-Identifier: Apache-2.0
"""A client's whole contribution as one vector of norm at most 1, and the sum of such made usable.

Segment s (β^k Δ^k, β^k, L^k, N^k) has a bound C_s on its norm and a share a_s of the whole, with
Σ_s a_s² ≤ 1: it is clipped to C_s and sent as a_s / C_s times itself. Noise z on the sum is then
z C_s / a_s in the segment's own unit. A last segment says which bounds a client was within; its
noised sum moves them towards a quantile (Andrew et al. 2021).

What is bounded is a client's own: n_k Δ^k, n_k = Σ_i N^k_i and L^k, and not what λ makes of them.
The largest α is sent as 1, so the mean α of its examples, β^k / n_k, is at most 1 and takes β^k Δ^k
and β^k nowhere beyond the bounds of n_k Δ^k and n_k. Bounds that followed a quantile of β^k Δ^k
would sink wherever λ leaves most clients, and clip just those who count.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.channels.dp.noise import (
    Release,
    Scale,
    by_clients,
    released,
    to_whole_numbers,
    too_long,
)
from agnosticfl.core import tree
from agnosticfl.core.channel import Adders, Channel, Decoded
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.lazy_jax import Array, jnp
from agnosticfl.core.model import Params

MARGIN = 1 - 1e-3  # clipped norms stay this far below their bounds: float32 cannot push them over
STEP = 0.2  # η: how fast the bounds' logarithms move, in a round
MOST_STEPS = 5  # of such that are taken at once, after many rounds
SHARE_NOISE = 0.05  # the most noise, a standard deviation, on a share by which bounds move
SMALLEST_BOUND = 1e-12


class Segments(NamedTuple):
    """One client's vector, the sum of many, or a number for each segment of it."""

    update: Params  # β^k Δ^k
    beta: Any  # β^k
    loss: Any  # [p] L^k
    count: Any  # [p] N^k
    within: Any  # [3] ±1/2: whether the client was within each bound


class ClipBounds(NamedTuple):
    """The most of one client."""

    update: Any  # ‖n_k Δ^k‖, and so ‖β^k Δ^k‖
    loss: Any  # ‖L^k‖
    count: Any  # n_k, and so β^k and ‖N^k‖


class PrivacyState(NamedTuple):
    """What the server carries and tells the clients."""

    bounds: ClipBounds
    sigma: Array  # of one draw of noise, in units
    units: Array  # of a vector of norm 1
    within: Array  # [3] Σ of the noised shares since the bounds last moved
    rounds: Array  # how many rounds that was


class Follow(NamedTuple):
    """How bounds follow a quantile."""

    quantile: float  # of the updates' norms
    every: int  # rounds over which a noised share is averaged before bounds move


# a_s²: most of it to the update, whose noise has as many dimensions as the model.
SHARES = Segments(update=0.75, beta=0.05, loss=0.1, count=0.09, within=0.01)
FIXED_SHARES = Segments(update=0.76, beta=0.05, loss=0.1, count=0.09, within=0.0)
# Of a client who only reports, and has neither update nor weight.
REPORT_SHARES = Segments(update=0.0, beta=0.0, loss=0.5, count=0.49, within=0.01)
FIXED_REPORT_SHARES = Segments(update=0.0, beta=0.0, loss=0.51, count=0.49, within=0.0)
OTHERS = 0.9  # quantile of the bounds on L^k and n_k
LEAST_ALPHA = 1e-6  # where the largest is 1: a client without any weight could not say its Δ^k


def follow(quantile: float, noise: float, clients: int, rounds: int) -> Follow | None:
    """How bounds can follow `quantile` with this noise; None if they must stay fixed.

    One round's share has noise of standard deviation z / (a c). Averaged over m rounds it is at
    most `SHARE_NOISE`; if m is more than all rounds there are, nothing can be learnt of a quantile.
    """
    if quantile == 0:
        return None
    one_round = noise / (MARGIN * math.sqrt(SHARES.within) * clients)
    every = max(math.ceil((one_round / SHARE_NOISE) ** 2), 1)
    return Follow(quantile, every) if every <= rounds else None


def private(
    bounds: ClipBounds,
    scale: Scale,
    clients: int,
    following: Follow | None,
    release: Release,
    reports: bool = False,
    most_alpha: float = math.inf,
) -> Channel:
    """The channel of a differentially private run.

    Args:
      bounds: those of the first round, or of all rounds if they follow nothing.
      scale: of whole numbers and noise.
      clients: c.
      following: how the bounds move; None for fixed bounds.
      release: gives the sum its noise.
      reports: whether contributions are reports, without an update.
      most_alpha: see `Channel`.
    """
    adaptive, fixed = (REPORT_SHARES, FIXED_REPORT_SHARES) if reports else (SHARES, FIXED_SHARES)
    share = Segments(*(math.sqrt(a) for a in (fixed if following is None else adaptive)))

    def init() -> PrivacyState:
        return PrivacyState(
            ClipBounds(*map(jnp.float32, bounds)),
            jnp.int32(scale.sigma),
            jnp.float32(scale.units),
            jnp.zeros(len(bounds)),
            jnp.zeros((), jnp.int32),
        )

    def encode(state: PrivacyState, sums: ClientSum, key: Array) -> Any:
        del key
        return to_whole_numbers(unit_vector(state.bounds, share, sums), state.units)

    def decode(state: PrivacyState, total: Any, key: Array) -> Decoded:
        del key  # which follows from the run's seed, and so is no secret
        noised = released(release, total, state.sigma, state.units)
        deviation = math.sqrt(scale.shares) * scale.spread
        noise = state.sigma.astype(jnp.float32) * deviation / state.units
        sums = estimate(state.bounds, noise, share, noised)
        if following is None:
            return Decoded(sums, state, {})
        within = noised.within / (MARGIN * share.within * clients) + 0.5
        after = moved(state, within, following)
        report = (
            {}
            if reports
            else {"clip": state.bounds.update / state.bounds.count, "within_clip": within[0]}
        )
        return Decoded(sums, after, report)

    def implausible(state: PrivacyState, total: Any, adders: Adders) -> str | None:
        del state
        noised = scale if release is by_clients else scale._replace(sigma=0)
        return too_long(total, noised, adders.clients)

    return Channel(
        init,
        encode,
        lambda message: message,
        decode,
        unit_alpha=True,
        least_alpha=LEAST_ALPHA,
        most_alpha=most_alpha,
        implausible=implausible,
    )


def moved(state: PrivacyState, within: Array, following: Follow) -> PrivacyState:
    """The bounds after a round in which a noised share `within` was within them.

    The share is not clipped to what is possible: clipped noise has another mean, and bounds that
    follow it run away. It is averaged until little noise is left of it instead.
    """
    total, rounds = state.within + within, state.rounds + 1
    wanted = jnp.array([following.quantile, OTHERS, OTHERS])
    step = STEP * min(following.every, MOST_STEPS)
    now = rounds >= following.every
    factor = jnp.where(now, jnp.exp(-step * (total / rounds.astype(jnp.float32) - wanted)), 1)
    bounds = ClipBounds(*jnp.maximum(jnp.array(state.bounds) * factor, SMALLEST_BOUND))
    return state._replace(
        bounds=bounds, within=jnp.where(now, 0, total), rounds=jnp.where(now, 0, rounds)
    )


def unit_vector(bounds: ClipBounds, share: Segments, sums: ClientSum) -> Segments:
    """One client's contribution, of norm at most 1; with share 0, a segment is not sent.

    N^k, β^k and L^k shrink alike, so that a client of many examples keeps its mean loss. Whatever
    α was sent, β^k / n_k counts as 1 at most: no segment is ever longer than its bound.
    """
    size = jnp.sum(sums.domain_count)  # n_k
    mean_alpha = jnp.minimum(tree.divide(jnp.abs(sums.beta), size), 1)
    update, a = clipped(sums.weighted_delta, mean_alpha * bounds.update)
    beta, _ = clipped(sums.beta, mean_alpha * bounds.count)
    _, c = clipped(size, bounds.count)
    loss, b = clipped(c * sums.domain_loss, bounds.loss)
    within = jnp.where(jnp.array([a, b, c]) < 1, -0.5, 0.5) * (MARGIN * share.within)
    parts = (update, beta, loss, c * sums.domain_count)
    each = zip(share[:4], of_segments(bounds), parts, strict=True)
    return Segments(*(tree.scale(MARGIN * s / most, part) for s, most, part in each), within=within)


def of_segments(bounds: ClipBounds) -> tuple[Any, Any, Any, Any]:
    """C_s of β^k Δ^k, β^k, L^k and N^k."""
    return bounds.update, bounds.count, bounds.loss, bounds.count


def clipped(vector: Any, bound: Array) -> tuple[Any, Array]:
    """`vector` with a norm of at most `bound`, and the factor, at most 1, that it took."""
    size = tree.norm(vector)
    factor = jnp.where(size > bound, bound / jnp.where(size > bound, size, 1), 1)
    return tree.scale(factor, vector), factor


def estimate(bounds: ClipBounds, noise: Array, share: Segments, noised: Segments) -> ClientSum:
    """The `ClientSum` that a noised sum stands for, with nothing negative in β, L and N.

    Σβ is at least its noise's standard deviation. A domain whose count is below that of its noise
    is absent, as one without examples is: it would only bring noise divided by noise.
    """
    for_update, for_beta, for_loss, for_count = (
        most / (MARGIN * s) if s > 0 else jnp.zeros(())
        for most, s in zip(of_segments(bounds), share[:4], strict=True)
    )
    count = for_count * noised.count
    count = jnp.where(count >= noise * for_count, count, 0)
    loss = jnp.where(count > 0, jnp.maximum(for_loss * noised.loss, 0), 0)
    return ClientSum(
        weighted_delta=tree.scale(for_update, noised.update),
        beta=jnp.maximum(noised.beta, noise) * for_beta,
        domain_loss=loss,
        domain_count=count,
        left_out=jnp.zeros(()),  # how many clients failed is their secret too
    )


def vector_size(like: ClientSum) -> int:
    """How many numbers the vector has."""
    return tree.size(like._replace(left_out=np.zeros(len(ClipBounds._fields))))  # type: ignore[arg-type]
