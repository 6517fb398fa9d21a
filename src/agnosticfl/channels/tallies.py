# SPDX-License-Identifier: Apache-2.0
"""The way of a tally into the sum of an evaluation: bounds, fixed point, and what cannot be.

The same as for contributions (`fixed_point.py`, `plausible.py`), in whole numbers modulo 2³²:

    examples, tables of counts, left out, clipped     1 word each, exact
    all other numbers                                 2 words each, in units of R / M and R / M²

M is the largest power of two that as many clients can each add, and R what one client can have at
most: `examples` for a gap and for a weight (times the tokens of a sentence), `loss` times that for
a total. Nothing is rounded at random, and what rounding there is is below R / M² for each client.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.channels.bounds import Bounds, check_bounds
from agnosticfl.channels.fixed_point import largest_word
from agnosticfl.core.channel import PLAIN, Adders, Channel, Decoded
from agnosticfl.core.lazy_jax import Array, jnp
from agnosticfl.core.tally import Form, Tally, wrong
from agnosticfl.errors import check

EXAMPLES = "examples"  # of each domain; no table has this name


class TallyWords(NamedTuple):
    """A tally, or a sum of them, as int32; only a sum modulo 2³² is ever formed."""

    counts: dict[str, np.ndarray]  # tables of counts, and `EXAMPLES`
    means: dict[str, np.ndarray]  # [2, 2, p]: words of totals and of weights
    gaps: dict[str, np.ndarray]  # [2, p, …]: words of the other tables
    left_out: np.ndarray
    clipped: np.ndarray


def tallies_in_the_clear(form: Form) -> Channel:
    """Tallies as they are; those that contradict themselves are seen."""

    def implausible(state: Any, total: Tally, adders: Adders) -> str | None:
        del state
        return wrong(form, total) or _flag("left out", total.left_out, adders)

    return PLAIN._replace(implausible=implausible)


def tallies_in_fixed_point(form: Form, clients: int, bounds: Bounds) -> Channel:
    """Tallies for a secure sum over at most `clients`, each within `bounds`."""
    check_bounds(bounds)
    most, weight = largest_word(clients), float(form.longest * bounds.examples)
    check(
        bounds.examples <= most,
        f"counts up to {bounds.examples} of {clients} clients can add up to more than 2^31;"
        f" with so many clients the bound of examples is at most {most}",
    )
    both = np.array([[bounds.loss * weight], [weight]])  # of a total, of a weight
    whole = {name for name, table in form.tables.items() if table.whole}

    def encode(state: Any, own: Tally, key: Array | None) -> TallyWords:
        del state, key
        own, clipped = bounded(form, bounds, own)
        gaps = {name: table for name, table in own.tables.items() if name not in whole}
        counts = {name: own.tables[name] for name in whole} | {EXAMPLES: own.means["loss"][1]}
        words = TallyWords(
            counts,
            {name: _two_words(each, both, most) for name, each in own.means.items()},
            {name: _two_words(each, bounds.examples, most) for name, each in gaps.items()},
            own.left_out,
            clipped,
        )
        return _each(words, lambda x: np.asarray(x, np.int64).astype(np.int32))

    def exact(total: TallyWords) -> Tally:
        words = _signed(total)
        means = {name: _one_number(each, both, most) for name, each in words.means.items()}
        means["loss"][1] = words.counts[EXAMPLES]
        gaps = {n: _one_number(each, bounds.examples, most) for n, each in words.gaps.items()}
        return Tally(means, gaps | {name: words.counts[name] for name in whole}, words.left_out)

    def decode(state: Any, total: TallyWords, key: Array | None) -> Decoded:
        del key
        clipped = jnp.asarray(_signed(total).clipped)
        return Decoded(exact(total), state, {"clients_clipped": clipped})

    def implausible(state: Any, total: TallyWords, adders: Adders) -> str | None:
        del state
        sums, rounded = exact(total), adders.clients * both[:, 0] / most**2
        return (
            _flag("left out", sums.left_out, adders)
            or _flag("clipped", _signed(total).clipped, adders)
            or wrong(form, sums, rounded[1])
            or _beyond(form, bounds, sums, adders, *rounded.tolist())
        )

    return Channel(lambda: (), encode, lambda message: message, decode, implausible=implausible)


def bounded(form: Form, bounds: Bounds, own: Tally) -> tuple[Tally, np.ndarray]:
    """One client's tally within its bounds, and whether it was not before (1 or 0).

    It has no more examples than are allowed: which of them count is chosen before they are measured
    (`keeping.kept_apart`).
    """
    count = own.means["loss"][1]
    check(
        count.sum() <= bounds.examples,
        f"a client measured with {count.sum():.0f} examples; its bound is {bounds.examples}",
    )
    means: dict[str, np.ndarray] = {}
    for name, (total, weight) in own.means.items():
        fewer = np.clip(weight, 0, form.longest * count)
        mean = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
        high = (np.abs(mean) > bounds.loss) | (fewer != weight)
        limited = np.clip(mean, -bounds.loss, bounds.loss) * fewer
        means[name] = np.stack([np.where(high, limited, total), fewer])
    changed = any((means[name] != own.means[name]).any() for name in means)
    return own._replace(means=means), np.array(int(changed))


def _two_words(values: np.ndarray, largest: Any, most: int) -> np.ndarray:
    scaled = np.clip(values / largest, -1, 1) * most
    high = np.floor(scaled)
    return np.stack([high, np.round((scaled - high) * most)])


def _one_number(words: np.ndarray, largest: Any, most: int) -> np.ndarray:
    high, low = words
    return (high + low / most) * (largest / most)


def _signed(total: TallyWords) -> TallyWords:
    return _each(total, lambda x: np.asarray(x).astype(np.int32).astype(np.float64))


def _each(words: TallyWords, function: Callable[[Any], np.ndarray]) -> TallyWords:
    """`function` of every array."""

    def of(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: function(array) for name, array in part.items()}
        return function(part)

    return TallyWords(*map(of, words))


def _flag(what: str, value: np.ndarray, adders: Adders) -> str | None:
    number = float(value)
    if number == round(number) and 0 <= number <= adders.clients:
        return None
    return f"{number:.10g} clients are {what}; it must be a whole number up to {adders.clients}"


def _beyond(
    form: Form,
    bounds: Bounds,
    total: Tally,
    adders: Adders,
    rounded_total: float,
    rounded_weight: float,
) -> str | None:
    count = total.means["loss"][1]
    holders = [adders.clients] * len(count) if adders.holders is None else adders.holders
    for i, (value, number) in enumerate(zip(count.tolist(), holders, strict=True), start=1):
        if value > bounds.examples * number:
            return (
                f"N_{i} is {value:.10g}; it must be at most {bounds.examples} of each of {number}"
            )
    if count.sum() > bounds.examples * adders.clients:
        return f"Σ N is {count.sum():.10g}; it must be at most {bounds.examples} of each client"
    for name, (sums, weight) in total.means.items():
        if (weight > form.longest * count * (1 + 1e-12) + rounded_weight).any():
            return f"the weight of {name} is {weight.tolist()}, for {count.tolist()} examples"
        # Each rounding of float64 is far below that of the words.
        highest = bounds.loss * (weight + rounded_weight) * (1 + 1e-12) + rounded_total
        for i in np.flatnonzero(np.abs(sums) > highest):
            most = f"{bounds.loss:g} of each of {weight[i]:.10g}"
            return f"{name} of domain {i + 1} adds up to {sums[i]:g}; it must be at most {most}"
    return None
