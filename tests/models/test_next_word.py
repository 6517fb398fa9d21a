# SPDX-License-Identifier: Apache-2.0
"""A next-word model's losses by kernels, and by the plain formula."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core import compiling
from agnosticfl.core.metrics.sentences import cross_entropy
from agnosticfl.core.precision import in_precision
from agnosticfl.models import cifg, lstm
from agnosticfl.models.helpers.fused_loss import NO_WORD, ON_CARD, Blocks, Ways, fused_loss


@pytest.mark.parametrize(
    ("padding", "words", "shares"),  # whole blocks of words, and not
    [([], 64, 1), ([0, 5, 6, 40], 75, 1), (range(10, 64), 64, 2), (range(10, 64), 75, 1)],
)
def test_loss_and_gradient_are_those_of_the_plain_formula(padding, words, shares):
    lanes, tokens, size = 2, 64, 48  # 48 is loaded as 32 and 16
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (lanes, tokens, size))
    w = jax.random.normal(keys[1], (lanes, size, words))
    b = jax.random.normal(keys[2], (lanes, words))
    y = jax.random.randint(keys[3], (lanes, tokens), 0, words)
    d = jax.random.uniform(keys[4], (lanes, tokens))
    real = jnp.ones(tokens, bool).at[jnp.array(padding, int)].set(False)
    real = jnp.stack([real, jnp.ones(tokens, bool)])  # the other lane has none
    y = jnp.where(real, y, NO_WORD)
    small = Blocks(tokens=16, words=16, warps=4, stages=2, shares=shares)
    large = Blocks(tokens=32, words=32, warps=4, stages=2, shares=shares)
    fused = fused_loss(Ways(small, large, large), jnp.float32, interpret=True)

    def plain(x, w, b):
        losses = cross_entropy(jnp.einsum("lne,lev->lnv", x, w) + b[:, None], jnp.maximum(y, 0))
        return jnp.where(real, losses, 0)

    losses, pullback = jax.vjp(lambda x, w, b: fused(x, w, b, y), x, w, b)
    expected, plain_pullback = jax.vjp(plain, x, w, b)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    for gradient, plain_gradient in zip(pullback(d), plain_pullback(d), strict=True):
        np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-5, atol=2e-5)


def test_gradients_too_small_for_float16_are_not_lost():
    keys = jax.random.split(jax.random.key(2), 4)
    x, w = (jax.random.normal(k, s) for k, s in zip(keys, [(2, 32, 16), (2, 16, 64)], strict=False))
    b, y = jnp.zeros((2, 64)), jax.random.randint(keys[2], (2, 32), 0, 64)
    d = jnp.array([[1e-9], [0.0]]) * jax.random.uniform(keys[3], (2, 32))  # one client has none
    blocks = Blocks(tokens=32, words=32, warps=4, stages=2)

    def gradients(kind: Any) -> Any:
        fused = fused_loss(Ways(blocks, blocks, blocks), kind, interpret=True)
        return jax.vjp(lambda x, w, b: fused(x, w, b, y), x, w, b)[1](d)

    for actual, expected in zip(gradients(jnp.float16), gradients(jnp.float32), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=5e-3, atol=5e-12)  # 10 bits of mantissa


def test_clients_side_by_side_have_the_losses_that_each_has_alone():
    clients, sentences, length, size, words = 3, 8, 8, 16, 70
    keys = jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(keys[0], (clients, sentences * length, size))
    w = jax.random.normal(keys[1], (clients, size, words))
    y = jax.random.randint(keys[2], (clients, sentences * length), 0, words)
    blocks = Blocks(tokens=32, words=32, warps=4, stages=2)
    fused = fused_loss(Ways(blocks, blocks, blocks), jnp.float32, interpret=True)

    def alone(x, w, y):
        return fused(x[None], w[None], jnp.zeros((1, words)), y[None])[0]

    together = jax.vmap(jax.value_and_grad(lambda *given: alone(*given).sum(), (0, 1)))(x, w, y)
    for k in range(clients):
        own = jax.value_and_grad(lambda *given: alone(*given).sum(), (0, 1))(x[k], w[k], y[k])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(own), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("precision", "length", "embedding", "expected"),
    [
        ("bf16", 16, 48, True),
        ("tf32", 16, 48, True),
        ("float32", 16, 48, False),
        ("bf16", 15, 48, False),  # 60 tokens are no whole blocks
        ("bf16", 16, 40, False),  # 40 is 32 and 8, over which no card can add up
        ("bf16", 16, 256, False),
    ],
)
@pytest.mark.parametrize("model", [lstm, cifg])
def test_kernels_are_for_hopper_16_bits_and_what_fits(
    model: Any, precision: str, length: int, embedding: int, expected: bool,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    made = model(words=20, embedding=embedding, hidden=8)
    params = jax.eval_shape(made.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((4, length + 1), jnp.int32)
    loss = in_precision(made.per_example_loss, precision)

    def uses_kernels() -> bool:
        # A new function each time: what JAX traced before is not what is asked for.
        traced = jax.make_jaxpr(lambda w, t: loss(w, {"tokens": t}, None))(params, tokens)
        return "pallas_call" in str(traced)

    assert not uses_kernels()  # on this CPU
    monkeypatch.setattr(compiling, "on_hopper", lambda: True)
    assert uses_kernels() == expected


def test_tokens_that_are_no_whole_blocks_are_refused():
    fused = fused_loss(ON_CARD, jnp.float32, interpret=True)
    with pytest.raises(ValueError, match="65 tokens are no multiple of a block of 64"):
        fused(
            jnp.ones((1, 65, 16)), jnp.ones((1, 16, 8)), jnp.ones((1, 8)), jnp.zeros((1, 65), int)
        )
