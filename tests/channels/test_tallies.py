# SPDX-License-Identifier: Apache-2.0
"""Tallies in the words of a secure sum."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.tallies import bounded, tallies_in_fixed_point, tallies_in_the_clear
from agnosticfl.core.channel import Adders
from agnosticfl.core.evaluate import full_evaluator, measurer
from agnosticfl.core.federated import from_arrays
from agnosticfl.core.metrics import token_loss
from agnosticfl.core.model import from_functions
from agnosticfl.core.tally import Tally, added, form_of, tallies, told
from agnosticfl.errors import BadInput
from tests.helpers.tallies import METRICS, classifier, examples, weights

BOUNDS = Bounds(examples=200, loss=50.0)
MODEL, DATA = classifier(3), examples(3, n=900)
FORM = form_of(MODEL, DATA)


def own_tallies() -> list[Tally]:
    return [own for _, own in tallies(FORM, measurer(MODEL, DATA)(weights(3)))]


def summed(clients: int, each: list[Tally], bounds: Bounds = BOUNDS) -> Any:
    """Σ of the words modulo 2³², as a secure sum adds them."""
    channel = tallies_in_fixed_point(FORM, clients, bounds)
    words = [channel.encode((), own, None) for own in each]  # type: ignore[arg-type]
    assert all(leaf.dtype == np.int32 for leaf in jax.tree.leaves(words))
    total = jax.tree.map(lambda *leaves: sum(x.astype(np.int64) for x in leaves), *words)
    return channel, jax.tree.map(lambda x: (x % 2**32).astype(np.uint32), total)


def adders(clients: int, holders: list[int] | None = None) -> Adders:
    return Adders(jnp.ones(3), clients, holders)


@pytest.mark.parametrize("clients", [9, 10_000])
def test_the_sum_of_words_is_the_sum_of_tallies(clients: int):
    each = own_tallies()
    channel, total = summed(clients, each)
    assert channel.implausible((), total, adders(len(each))) is None
    decoded, state, report = channel.decode((), total, None)
    expected = added(FORM, each)
    assert state == ()
    assert report["clients_clipped"] == 0
    for name in ("classes", "scores"):
        np.testing.assert_array_equal(decoded.tables[name], expected.tables[name])
    np.testing.assert_array_equal(decoded.means["loss"][1], expected.means["loss"][1])
    # Each of 9 clients rounds to 200 / M² of gaps and weights, 50 times that of totals.
    most = {9: 2**27, 10_000: 2**17}[clients]
    for part in ("means", "tables"):
        for name, array in getattr(expected, part).items():
            found = getattr(decoded, part)[name]
            np.testing.assert_allclose(found, array, rtol=1e-12, atol=9 * 50 * 200 / most**2)


def test_nobody_adds_nothing():
    channel, total = summed(5, [FORM.zeros] * 5)
    assert channel.implausible((), total, adders(5)) is None
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(total))


def test_a_mean_that_is_too_large_becomes_the_bound_and_is_counted():
    own = own_tallies()[0]
    means = {name: both.copy() for name, both in own.means.items()}
    means["loss"][0, 1] = 1e9
    limited, clipped = bounded(FORM, BOUNDS, own._replace(means=means))
    assert clipped == 1
    assert limited.means["loss"][0, 1] == 50 * own.means["loss"][1, 1]
    assert limited.means["loss"][0, 0] == own.means["loss"][0, 0]
    assert bounded(FORM, BOUNDS, own)[1] == 0
    channel, total = summed(9, [own._replace(means=means), *own_tallies()[1:]])
    assert channel.implausible((), total, adders(9)) is None
    assert channel.decode((), total, None).report["clients_clipped"] == 1


def test_sentences_weigh_as_many_tokens_as_they_have():
    """So none of them is clipped, and the perplexity is that of all tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, 9, size=(60, 6))
    tokens[::3, 4:] = 0  # padding
    data = from_arrays({"tokens": tokens}, rng.integers(4, size=60), rng.integers(2, size=60))

    def forward(params: Any, given: Any) -> Any:
        return params["w"][given["tokens"]]

    model = from_functions(
        lambda _: {"w": jnp.asarray(rng.normal(size=(10, 10)), jnp.float32)},
        lambda w, e: token_loss(forward(w, e), e["tokens"]).total,
        forward=forward,
        outputs="tokens",
        wanted=lambda e: e["tokens"],
        metrics=("perplexity", "in_vocab_accuracy"),
    )
    form, params = form_of(model, data), model.init(jax.random.key(0))
    assert form.longest == 6
    each = [own for _, own in tallies(form, measurer(model, data)(params))]
    channel = tallies_in_fixed_point(form, 4, BOUNDS)
    words = [channel.encode((), own, jax.random.key(0)) for own in each]
    total = jax.tree.map(lambda *leaves: sum(x.astype(np.int64) for x in leaves), *words)
    assert channel.implausible((), total, Adders(jnp.ones(2), 4)) is None
    decoded, _, report = channel.decode((), total, jax.random.key(0))
    assert report["clients_clipped"] == 0
    found, expected = told(form, decoded), full_evaluator(model, data)(params)
    for domain, values in expected.domains.items():
        assert found.domains[domain] == pytest.approx(values, rel=1e-9)


def test_a_client_with_too_many_examples_is_told_so():
    with pytest.raises(BadInput, match=r"measured with \d+ examples; its bound is 10"):
        bounded(FORM, Bounds(examples=10), own_tallies()[0])


def test_room_for_too_many_clients_is_refused():
    with pytest.raises(BadInput, match="the bound of examples is at most 64"):
        tallies_in_fixed_point(FORM, 2**24, BOUNDS)


@pytest.mark.parametrize("seed", range(20))
def test_random_words_of_one_client_are_seen(seed: int):
    channel, total = summed(9, own_tallies())
    rng = np.random.default_rng(seed)
    spoiled = jax.tree.map(
        lambda x: x + rng.integers(0, 2**32, x.shape, np.uint32).astype(np.uint32), total
    )
    assert channel.implausible((), spoiled, adders(9)) is not None


@pytest.mark.parametrize(
    ("part", "name", "place", "by", "line"),
    [
        ("means", "loss", (0, 0, 1), 2**28, "loss of domain 2 adds up to"),
        ("means", "accuracy", (0, 1, 1), 2**28, "the weight of accuracy is"),
        ("counts", "examples", 0, 2000, "its table of classes"),
        ("counts", "scores", (0, 0, 0, 0), 1, "its table of scores"),
        ("counts", "classes", (0, 2, 0), -1, "its table of classes"),
        ("gaps", "sureness", (0, 1, 3), 2**29, "its table of sureness"),
    ],
)
def test_a_large_number_in_one_word_is_seen(part: str, name: str, place: Any, by: int, line: str):
    channel, total = summed(9, own_tallies())
    words = {key: array.copy() for key, array in getattr(total, part).items()}
    words[name][place] = (int(words[name][place]) + by) % 2**32
    why = channel.implausible((), total._replace(**{part: words}), adders(9))
    assert why is not None
    assert line in why


def test_more_examples_than_the_holders_may_have_are_seen():
    channel, total = summed(9, own_tallies())
    why = channel.implausible((), total, adders(9, [9, 1, 9]))
    assert why is not None
    assert "N_2 is" in why
    assert channel.implausible((), total, adders(1)) is not None


def test_in_the_clear_a_tally_that_contradicts_itself_is_seen():
    channel, own = tallies_in_the_clear(FORM), own_tallies()[0]
    assert channel.implausible((), own, adders(1)) is None
    assert channel.implausible((), own._replace(left_out=np.array(2.0)), adders(1)) is not None
    assert set(METRICS) <= set(FORM.readings)
