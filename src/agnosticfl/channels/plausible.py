# SPDX-License-Identifier: Apache-2.0
"""Totals that cannot be: what so many honest clients within their bounds do not add up to.

Nobody can look into a masked vector, and one client can add any words to a secure sum. But most
words give a total that contradicts what follows from procedure CLIENT and from the bounds:

    N_i whole, N_i ≤ examples · (clients that may hold i),  Σ_i N_i ≤ examples · clients
    L_i = 0 where N_i = 0,  |L_i| ≤ loss · N_i
    β = Σ_i α_i N_i
    ‖Σ_k β^k Δ^k‖ ≤ update · β

So what one client can add unnoticed is at most what the bounds would allow all of them. Each
relation holds up to rounding only, and how far is derived here: an honest sum is never refused.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agnosticfl.channels.bounds import ROUNDED_COUNTS, Bounds
from agnosticfl.core import tree
from agnosticfl.core.channel import Adders, Channel
from agnosticfl.core.contribution import ChannelState, ClientSum, Total
from agnosticfl.core.lazy_jax import jax

# One rounding of float32 changes a number by 2^-24 of it at most. Twice that for each of several
# roundings in a row covers the products of their errors, too.
ROUNDING = 2.0**-23
# So many roundings are on the way from exact numbers to those in a message. Of β^k, beside p for
# the sum: the share of its examples, that times β^k, and two where it is encoded. Of a mean loss:
# the bound, the mean, that times N_i, and again two. Of an update: nine for its norm, what it
# may be and the factor between them, that times each number, and three where it is encoded.
FOR_BETA, FOR_LOSS, FOR_UPDATE = 6, 6, 14


class Sums(NamedTuple):
    """A total, in numbers that are not rounded again."""

    update: float  # ‖Σ_k β^k Δ^k‖
    beta: float
    domain_loss: np.ndarray
    domain_count: np.ndarray
    left_out: float
    clipped: float = 0.0


class Rounded(NamedTuple):
    """By how much more than the roundings of float32 a message differs from its contribution."""

    update: float = 0.0  # in length
    beta: float = 0.0
    loss: float = 0.0
    additions: int = 0  # of the sum itself, if it is one of float32


class Levels(NamedTuple):
    """What else is in a total of `few_bits`."""

    length: float  # Σ_k ‖β^k Δ^k‖
    outside: float  # Σ_k of the share of numbers outside the range
    moved: float  # clients whose update is not 0
    highest: float  # the largest sum of levels of one number, either sign
    most: int  # the highest level of one client
    length_rounded: float  # by how much the two sums differ in each message
    outside_rounded: float


def why_implausible(
    channel: Channel, state: ChannelState, total: Total, adders: Adders
) -> str | None:
    """Why a round's total cannot be the sum of so many honest contributions; None if it can.

    In the clear nothing is bounded: then the relations among its own numbers are all there is. They
    hold for what a single client adds, too.
    """
    if not isinstance(total, ClientSum):
        return channel.implausible(state, total, adders)
    flat = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(total.weighted_delta)]
    sums = Sums(
        update=length_of(flat),
        beta=float(total.beta),
        domain_loss=np.asarray(total.domain_loss, np.float64),
        domain_count=np.asarray(total.domain_count, np.float64),
        left_out=float(total.left_out),
    )
    return next(_problems(sums, 0, Rounded(additions=adders.clients), None, adders, None), None)


def beyond_bounds(
    sums: Sums,
    size: int,
    rounded: Rounded,
    bounds: Bounds,
    adders: Adders,
    levels: Levels | None = None,
) -> str | None:
    """The same for a total of contributions within `bounds`, with updates of `size` numbers."""
    return next(_problems(sums, size, rounded, bounds, adders, levels), None)


def length_of(arrays: list[np.ndarray]) -> float:
    """Of all numbers together."""
    return math.hypot(*(float(np.linalg.norm(array)) for array in arrays))


def _problems(
    sums: Sums,
    size: int,
    rounded: Rounded,
    bounds: Bounds | None,
    adders: Adders,
    levels: Levels | None,
) -> Iterator[str]:
    """One line for each; what follows the first may be a consequence of it, or nonsense."""
    if not all(np.isfinite(value).all() for value in sums):
        yield "a number of it is not finite"
    yield from _of_flags(sums, adders)
    yield from _of_counts(sums, bounds, adders)
    yield from _of_losses(sums, rounded, bounds, adders)
    yield from _of_weights(sums, rounded, adders)
    if bounds is not None:
        longest = _longest(sums, size, rounded, bounds, adders)
        yield from _of_updates(sums, longest, rounded, bounds, adders)
        if levels is not None:
            yield from _of_levels(sums, size, longest, rounded, adders, levels)


def _of_flags(sums: Sums, adders: Adders) -> Iterator[str]:
    flags = {"left out": sums.left_out, "clipped": sums.clipped}
    for name, value in {**flags, "left out or clipped": sum(flags.values())}.items():
        if value != round(value) or not 0 <= value <= adders.clients:
            most = f"a whole number from 0 to {adders.clients}"
            yield f"{value:.10g} clients are {name}; it must be {most}"


def _of_counts(sums: Sums, bounds: Bounds | None, adders: Adders) -> Iterator[str]:
    count, adding = sums.domain_count, _adding(sums, adders)
    for i, value in enumerate(count, start=1):
        if value != round(value) or value < 0:
            yield f"N_{i} is {value:.10g}; it must be a whole number from 0 on"
    if adding == 0 and count.any():
        yield f"Σ N is {count.sum():.10g}, while all {adders.clients} clients are left out"
    if bounds is None:
        return
    holders = [adders.clients] * len(count) if adders.holders is None else adders.holders
    for i, (value, number) in enumerate(zip(count, holders, strict=True), start=1):
        if value > bounds.examples * number:
            yield f"N_{i} is {value:.10g}; it must be at most {bounds.examples} of each of {number}"
    if count.sum() > bounds.examples * adding:
        most = f"{bounds.examples} of each of {adding:.0f}"
        yield f"Σ N is {count.sum():.10g}; it must be at most {most}"


def _of_losses(
    sums: Sums, rounded: Rounded, bounds: Bounds | None, adders: Adders
) -> Iterator[str]:
    count, loss = sums.domain_count, sums.domain_loss
    for i in np.flatnonzero((count == 0) & (loss != 0)):
        yield f"L_{i + 1} is {loss[i]:g}, while N_{i + 1} is 0"
    if bounds is None:
        return
    highest = bounds.loss * count * (1 + FOR_LOSS * ROUNDING)
    highest += np.minimum(count, _adding(sums, adders)) * rounded.loss
    for i in np.flatnonzero(np.abs(loss) > highest):
        most = f"{bounds.loss:g} of each of {count[i]:.10g} examples"
        yield f"L_{i + 1} is {loss[i]:g}; it must be at most {most}"


def _of_weights(sums: Sums, rounded: Rounded, adders: Adders) -> Iterator[str]:
    expected, room = _weight(sums, rounded, adders)
    if sums.beta < 0 or abs(sums.beta - expected) > room:
        yield f"β is {sums.beta:.7g}, while Σ α N is {expected:.7g}; they may differ by {room:.2g}"


def _of_updates(
    sums: Sums, longest: float, rounded: Rounded, bounds: Bounds, adders: Adders
) -> Iterator[str]:
    if sums.update > longest + _adding(sums, adders) * rounded.update:
        most = f"{bounds.update:g} · β, which is {bounds.update * sums.beta:g}"
        yield f"‖Σ βΔ‖ is {sums.update:g}; it must be at most {most}"


def _of_levels(
    sums: Sums, size: int, longest: float, rounded: Rounded, adders: Adders, levels: Levels
) -> Iterator[str]:
    adding, moved = _adding(sums, adders), levels.moved
    if moved != round(moved) or not 0 <= moved <= adding:
        yield f"{moved:.10g} clients moved; it must be a whole number from 0 to {adding:.0f}"
    room = moved * levels.length_rounded
    most = longest * _norm_rounding(size) + room if moved else 0.0
    if not 0 <= levels.length <= most:
        yield f"Σ ‖βΔ‖ is {levels.length:g}; it must be from 0 to {most:g}"
    if not 0 <= levels.outside <= moved * (1 + 2 * ROUNDING + levels.outside_rounded):
        yield f"the shares outside add up to {levels.outside:g}; it must be from 0 to {moved:g}"
    if levels.highest > moved * levels.most:
        yield f"a sum of levels is {levels.highest:g}; each of {moved:g} adds at most {levels.most}"
    if sums.update > (levels.length + room) * _norm_rounding(size) + moved * rounded.update:
        yield f"‖Σ βΔ‖ is {sums.update:g}, while Σ ‖βΔ‖ is {levels.length:g}"


def _adding(sums: Sums, adders: Adders) -> float:
    """How many clients add anything but that they are left out."""
    return adders.clients - sums.left_out


def _weight(sums: Sums, rounded: Rounded, adders: Adders) -> tuple[float, float]:
    """Σ_i α_i N_i, and by how much β may differ from it."""
    alpha, count = np.asarray(adders.alpha, np.float64), sums.domain_count
    expected = float(alpha @ count)
    steps = len(alpha) + rounded.additions + FOR_BETA
    room = steps * ROUNDING * expected + adders.clients * rounded.beta
    room += sums.clipped * ROUNDED_COUNTS * len(alpha) * float(np.ptp(alpha))
    # Where even α_i is so small that float32 has lost its precision, or dropped it.
    return expected, room + tree.SMALLEST * float(count.sum() + adders.clients * len(alpha))


def _longest(sums: Sums, size: int, rounded: Rounded, bounds: Bounds, adders: Adders) -> float:
    """Σ_k ‖β^k Δ^k‖ at most, before updates are encoded."""
    beta = sums.beta + _weight(sums, rounded, adders)[1]
    return bounds.update * beta * _norm_rounding(size)


def _norm_rounding(size: int) -> float:
    """How many times as long as its norm in float32 says a vector can be.

    None of the additions of its squares loses more than 2^-24 of what they add up to at last.
    """
    return math.sqrt(1 + size * ROUNDING / 2) * (1 + FOR_UPDATE * ROUNDING)
