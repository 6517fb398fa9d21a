# SPDX-License-Identifier: Apache-2.0
"""Totals that cannot be: no honest sum is refused, and what no honest clients add up to is."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.channels import compressed
from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.compression import Turn
from agnosticfl.channels.fixed_point import Typical, few_bits, in_fixed_point, largest_word
from agnosticfl.channels.plausible import why_implausible
from agnosticfl.core.channel import PLAIN, Adders, Channel
from agnosticfl.core.contribution import ClientSum, usable

MOST, P, SIZE = 50, 3, 40  # clients, domains, numbers of an update
SHAPES: list[tuple[int, ...]] = [(SIZE,), (), (P,), (P,), ()]
LIKE: Any = jax.eval_shape(lambda: ClientSum(*(jnp.zeros(shape) for shape in SHAPES)))


def contributions(
    rng: np.random.Generator,
    alpha: np.ndarray,
    number: int,
    count: float,
    loss: float,
    update: float,
    broken: float = 0.0,
) -> ClientSum:
    """Those of `number` clients, of about these sizes; β = Σ α N as float32 has it."""
    here = rng.random((number, P)) < 0.7
    counts = np.floor(here * count * rng.random((number, P))).astype(np.float32)
    beta = jax.vmap(lambda n: jnp.sum(jnp.asarray(alpha) * n))(jnp.asarray(counts))
    mean = loss * rng.standard_normal((number, P)) * rng.choice([0, 1, 1, 30], (number, P))
    delta = update * rng.standard_normal((number, SIZE)) / math.sqrt(SIZE)
    delta *= rng.choice([0, 1, 1, 1, 100], (number, 1))
    clients = ClientSum(
        beta[:, None] * jnp.asarray(delta, jnp.float32),
        beta,
        jnp.asarray(mean.astype(np.float32) * counts),
        jnp.asarray(counts),
        jnp.zeros(number),
    )
    bad = jnp.asarray(rng.random(number) < broken)
    nan = jnp.where(bad[:, None], jnp.inf, clients.domain_loss)
    return jax.vmap(usable)(clients._replace(domain_loss=nan))


def summed(channel: Channel, state: Any, clients: ClientSum, among: np.ndarray) -> Any:
    """The total of those in `among`, as a secure sum adds it: modulo 2^32, or 2^bits."""
    keys = jax.random.split(jax.random.key(7), len(clients.beta))
    messages = jax.vmap(channel.encode, (None, 0, 0))(state, clients, keys)
    total = added(jax.vmap(channel.summand)(messages), among)
    if channel.bits is None:
        return total
    cut = jnp.bitwise_and(total.words.weighted_delta, 2**channel.bits - 1)
    return total._replace(words=total.words._replace(weighted_delta=cut))


def added(summands: Any, among: np.ndarray) -> Any:
    def one(leaf: jax.Array) -> jax.Array:
        rows = np.asarray(leaf)[among]  # numpy compiles nothing anew for another number of rows
        return jnp.asarray(np.sum(rows, axis=0, dtype=rows.dtype))

    return jax.tree.map(one, summands)


def unit(alpha: list[float]) -> np.ndarray:
    alphas = np.array(alpha, np.float32)
    return alphas / alphas.max() if alphas.max() > 1e-30 else np.ones(P, np.float32)


weights = st.lists(st.one_of(st.floats(0, 1, width=32), st.just(0.0)), min_size=P, max_size=P)
powers = st.integers(-3, 3).map(lambda e: 10.0**e)


@st.composite
def situations(draw: Any) -> tuple[np.ndarray, Bounds, int, np.ndarray, ClientSum]:
    """α, bounds, the most clients, who of them is in the sum, and all their contributions."""
    alpha, number = unit(draw(weights)), draw(st.integers(1, MOST))
    examples = draw(st.integers(1, 2**24).map(lambda n: min(n, largest_word(number))))
    examples = min(examples, draw(st.sampled_from([10, 1000, 2**24])))
    bounds = Bounds(draw(powers), examples, draw(powers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Of about the size that is allowed, much less or much more.
    sizes = [
        draw(st.sampled_from([0.01, 0.5, 3.0, 1e3])) * bound
        for bound in (examples, bounds.loss, bounds.update)
    ]
    clients = contributions(rng, alpha, MOST, *sizes, broken=draw(st.sampled_from([0, 0.2])))
    among = np.flatnonzero(rng.random(number) < draw(st.sampled_from([0.5, 1.0])))
    return alpha, bounds, number, among if len(among) else np.arange(1), clients


def adders(alpha: np.ndarray, clients: ClientSum, among: np.ndarray) -> Adders:
    holders = np.count_nonzero(np.asarray(clients.domain_count)[among], axis=0)
    return Adders(jnp.asarray(alpha), len(among), [int(h) for h in holders])


@settings(max_examples=25)
@given(situations())
def test_every_honest_sum_in_fixed_point_is_plausible(situation: Any):
    alpha, bounds, number, among, clients = situation
    channel = in_fixed_point(number, bounds)(LIKE)
    total = summed(channel, (), clients, among)
    assert channel.implausible((), total, adders(alpha, clients, among)) is None


@settings(max_examples=25)
@given(situations(), st.sampled_from([4, 8]), st.sampled_from([0.0, 1e-30, 0.1, 1.0, 100.0]))
def test_every_honest_sum_in_few_bits_is_plausible(situation: Any, bits: int, ell: float):
    alpha, bounds, number, among, clients = situation
    channel = few_bits(number, bits, bounds)(LIKE)
    length = jnp.float32(ell * bounds.update * bounds.examples)
    state = (Turn(jnp.uint32(3)), Typical(length))
    total = summed(channel, state, clients, among)
    assert channel.implausible(state, total, adders(alpha, clients, among)) is None


@settings(max_examples=25)
@given(situations(), st.floats(1e-6, 1e6))
def test_every_honest_sum_in_the_clear_is_plausible(situation: Any, scale: float):
    alpha, _, _, among, clients = situation
    sums = added(clients, among)
    who = adders(alpha, clients, among)
    assert why_implausible(PLAIN, (), sums, who) is None
    factor = jnp.float32(scale)  # α is any, in the clear
    scaled = clients.beta * factor
    one = jax.tree.map(lambda leaf: leaf[0], clients._replace(beta=scaled))
    assert why_implausible(PLAIN, (), one, Adders(who.alpha * factor, 1)) is None
    channel = compressed(bits=8)(LIKE)
    state = channel.init()
    assert why_implausible(channel, state, summed(channel, state, clients, among), who) is None


BOUNDS = Bounds(update=2.0, examples=1000, loss=10.0)
ALPHA = np.array([1.0, 0.25, 0.5], np.float32)


def ordinary(channel: Channel, state: Any = ()) -> Any:
    """The total of five clients, well within their bounds, none of whom holds the third domain."""
    count = np.tile(np.array([40.0, 300.0, 0.0], np.float32), (5, 1))
    beta = count @ ALPHA
    delta = np.random.default_rng(1).uniform(-0.1, 0.1, (5, SIZE)).astype(np.float32)
    leaves = (beta[:, None] * delta, beta, 0.5 * count, count, np.zeros(5, np.float32))
    return summed(channel, state, ClientSum(*map(jnp.asarray, leaves)), np.arange(5))


FIVE = Adders(jnp.asarray(ALPHA), 5)
FIXED, FEW = in_fixed_point(5, BOUNDS)(LIKE), few_bits(5, 8, BOUNDS)(LIKE)
KNOWN = (Turn(jnp.uint32(1)), Typical(jnp.float32(3.0)))  # the state of `few_bits`
M = largest_word(5)


def with_words(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda total: total._replace(**{name: change(getattr(total, name))})


CHANGES = {
    "a count below 0": ("domain_count", lambda n: n.at[1].set(-1), "N_2 is -1; it must be a whole"),
    "a count of too many": (
        "domain_count",
        lambda n: n.at[0].set(5001),
        "N_1 is 5001; it must be at most 1000 of each of 5",
    ),
    "more examples than all may have": (
        "domain_count",
        lambda n: n.at[:].set(3000),
        "Σ N is 9000; it must be at most 1000 of each of 5",
    ),
    "one example more": ("domain_count", lambda n: n + jnp.array([1, 0, 0]), "β is .*while Σ α N"),
    "2^28 in a loss": (
        "domain_loss",
        lambda words: words.at[0, 0].add(2**28),
        r"L_1 is .*; it must be at most 10 of each of \d+ examples",
    ),
    "-2^28 in a loss": ("domain_loss", lambda words: words.at[0, 0].add(-(2**28)), "L_1 is -"),
    "a loss without examples": (
        "domain_loss",
        lambda words: words.at[1, 2].add(1),
        "L_3 is .*, while N_3 is 0",
    ),
    "a weight that is too large": ("beta", lambda words: words.at[0].add(2**20), "β is"),
    "a weight below 0": ("beta", lambda words: -words, "β is -"),
    "an update that is too long": (
        "weighted_delta",
        lambda words: words.at[7].add(M),
        r"‖Σ βΔ‖ is .*; it must be at most 2 · β",
    ),
    "too many left out": ("left_out", lambda n: n + 6, "6 clients are left out; .* from 0 to 5"),
    "fewer than none left out": ("left_out", lambda n: n - 1, "-1 clients are left out"),
    "too many clipped": ("clipped", lambda n: n + 2**20, "clients are clipped"),
    "all left out": ("left_out", lambda n: n + 5, "while all 5 clients are left out"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_total_that_cannot_be_is_named_with_the_number_and_its_bound(name: str):
    field, change, line = CHANGES[name]
    total = with_words(field, change)(ordinary(FIXED))
    assert FIXED.implausible((), ordinary(FIXED), FIVE) is None
    why = FIXED.implausible((), total, FIVE)
    assert why is not None
    assert "\n" not in why
    assert_matches(line, why)
    if field != "weighted_delta":  # there it is of another scale
        few = ordinary(FEW, KNOWN)
        why = FEW.implausible(KNOWN, few._replace(words=with_words(field, change)(few.words)), FIVE)
        assert_matches(line, why)


def assert_matches(line: str, why: str | None) -> None:
    assert why is not None
    assert re.search(line, why), why


def with_level(value: int) -> Callable[[Any], Any]:
    change = with_words("weighted_delta", lambda levels: levels.at[3].set(value))
    return lambda total: total._replace(words=change(total.words))


FEW_CHANGES = {
    "length": (lambda t: t._replace(length=t.length.at[0].add(M)), "Σ ‖βΔ‖ is .*; it must be from"),
    "length below 0": (lambda t: t._replace(length=-t.length), "Σ ‖βΔ‖ is -"),
    "outside": (
        lambda t: t._replace(outside=t.outside.at[0].add(6 * M)),
        "the shares outside add up to .*; it must be from 0 to 5",
    ),
    "moved": (lambda t: t._replace(moved=t.moved + 5), "10 clients moved; .* from 0 to 5"),
    "nobody moved": (lambda t: t._replace(moved=t.moved * 0), "Σ ‖βΔ‖ is .* from 0 to 0"),
    "a long sum of short updates": (
        lambda t: t._replace(length=t.length // 1000),
        "‖Σ βΔ‖ is .*, while Σ ‖βΔ‖ is",
    ),
    "a level that none can have": (
        with_level(1023),
        "a sum of levels is 1023; each of 5 adds at most 127",
    ),
}


@pytest.mark.parametrize("name", FEW_CHANGES)
def test_what_few_bits_add_is_checked_too(name: str):
    change, line = FEW_CHANGES[name]
    total = ordinary(FEW, KNOWN)
    assert FEW.implausible(KNOWN, total, FIVE) is None
    assert_matches(line, FEW.implausible(KNOWN, change(total), FIVE))


def test_in_a_round_that_only_measures_there_are_no_levels():
    first = (Turn(jnp.uint32(1)), Typical(jnp.zeros(())))
    total = ordinary(FEW, first)
    assert FEW.implausible(first, total, FIVE) is None
    levels = with_words("weighted_delta", lambda w: w.at[3].set(1))(total.words)
    why = FEW.implausible(first, total._replace(words=levels), FIVE)
    assert_matches("a sum of levels is 1; each of 5 adds at most 0", why)


def test_a_domain_has_no_more_examples_than_its_holders_may_have():
    total = ordinary(FIXED)
    assert FIXED.implausible((), total, FIVE._replace(holders=[1, 2, 0])) is None
    why = FIXED.implausible((), total, FIVE._replace(holders=[5, 1, 0]))
    assert why == "N_2 is 1500; it must be at most 1000 of each of 1"


@given(st.integers(0, 2**32), st.integers(1, MOST), st.booleans())
def test_random_words_are_no_sum(seed: int, clients: int, few: bool):
    rng = np.random.default_rng(seed)
    channel, state = (FEW, KNOWN) if few else (FIXED, ())
    like = ordinary(channel, state)
    words = jax.tree.map(
        lambda leaf: jnp.asarray(rng.integers(-(2**31), 2**31, leaf.shape), jnp.int32), like
    )
    assert channel.implausible(state, words, FIVE._replace(clients=clients)) is not None


def test_a_client_that_counts_with_fewer_examples_than_it_has_leaves_the_sum_plausible():
    """β^k shrinks with all counts alike, and these are rounded to whole ones."""
    count = jnp.array([1001.0, 1000.0, 999.0])
    beta = jnp.sum(ALPHA * count)
    own = ClientSum(jnp.zeros(SIZE), beta, jnp.zeros(P), count, jnp.zeros(()))
    total = FIXED.encode((), own, jax.random.key(0))
    assert float(jnp.sum(total.domain_count)) == BOUNDS.examples
    one = FIVE._replace(clients=1)
    assert FIXED.implausible((), total, one) is None
    # Unless it says so, the same total is one that cannot be.
    silent = total._replace(clipped=jnp.int32(0))
    assert_matches("β is", FIXED.implausible((), silent, one))


def in_the_clear(**changes: Any) -> ClientSum:
    count = jnp.array([3.0, 4.0, 0.0])
    own = ClientSum(
        jnp.ones(SIZE), jnp.sum(ALPHA * count), jnp.array([1.0, 2.0, 0.0]), count, jnp.zeros(())
    )
    return own._replace(**changes)


@pytest.mark.nan_input
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        ({"domain_count": jnp.array([3.0, 4.5, 0.0])}, "N_2 is 4.5; it must be a whole number"),
        ({"domain_count": jnp.array([-3.0, 4.0, 0.0])}, "N_1 is -3; it must be a whole number"),
        ({"domain_loss": jnp.array([1.0, 2.0, 1e-9])}, "L_3 is 1e-09, while N_3 is 0"),
        ({"beta": jnp.float32(4.001)}, "β is 4.001, while Σ α N is 4; they may differ by"),
        ({"beta": jnp.float32(-4)}, "β is -4, while"),
        ({"left_out": jnp.float32(0.5)}, "0.5 clients are left out; .* from 0 to 1"),
        ({"left_out": jnp.float32(1)}, "Σ N is 7, while all 1 clients are left out"),
        ({"weighted_delta": jnp.full(SIZE, jnp.nan)}, "a number of it is not finite"),
    ],
)
def test_what_one_client_says_in_the_clear_must_agree_with_itself(changes: Any, line: str | None):
    why = why_implausible(PLAIN, (), in_the_clear(**changes), Adders(jnp.asarray(ALPHA), 1))
    assert why is None if line is None else assert_matches(line, why) is None
