# SPDX-License-Identifier: Apache-2.0
"""Kernels that `benchmarks/pieces.py` times compute what models compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.fused_loss import Blocks, Ways, fused_loss

from agnosticfl.core.metrics.sentences import cross_entropy


@pytest.mark.parametrize("words", [64, 75])  # whole blocks of words, and not
def test_loss_and_gradient_are_those_of_the_plain_formula(words):
    lanes, tokens, size = 2, 64, 48  # 48 is loaded as 32 and 16
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (lanes, tokens, size))
    w = jax.random.normal(keys[1], (lanes, size, words))
    b = jax.random.normal(keys[2], (lanes, words))
    y = jax.random.randint(keys[3], (lanes, tokens), 0, words)
    d = jax.random.uniform(keys[4], (lanes, tokens))
    blocks = Blocks(tokens=32, words=32, warps=4, stages=2)
    fused = fused_loss(Ways(blocks, blocks, blocks), jnp.float32, interpret=True)

    def plain(x, w, b):
        return cross_entropy(jnp.einsum("lne,lev->lnv", x, w) + b[:, None], y)

    losses, pullback = jax.vjp(lambda x, w, b: fused(x, w, b, y), x, w, b)
    expected, plain_pullback = jax.vjp(plain, x, w, b)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    for gradient, plain_gradient in zip(pullback(d), plain_pullback(d), strict=True):
        np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-5, atol=2e-5)


def test_tokens_that_are_no_whole_blocks_are_refused():
    fused = fused_loss(Ways(), jnp.float32, interpret=True)
    with pytest.raises(ValueError, match="65 tokens are no multiple of a block of 64"):
        fused(
            jnp.ones((1, 65, 16)), jnp.ones((1, 16, 8)), jnp.ones((1, 8)), jnp.zeros((1, 65), int)
        )
