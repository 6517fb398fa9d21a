# SPDX-License-Identifier: Apache-2.0
"""The loss of a next-word model and its gradient without logits in a card's memory.

    loss_n = log Σ_v exp(a_nv) − a_{n, y_n},    a_n = W^T x_n + b,

for each lane l with a W and b of its own. Three kernels go over blocks of tokens and words and
compute a block of logits where they need it: for the sum and the own logit, for d_x, and for d_W
and d_b. A third of a batch is padding behind short sentences: real tokens are moved to the front,
and no logits are computed of the rest. `benchmarks/pieces.py` times this beside the plain way.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from agnosticfl.core.precision import scale_for

SMALLEST, LARGEST = 16, 128  # numbers of x that a product adds up over
NEVER = -1e30  # the bias of a word that is there only to fill a block

NO_WORD = -1  # the y of a token that is padding; its loss is 0

Loss = Callable[[Array, Array, Array, Array], Array]  # x [L, N, E], W [L, E, V], b [L, V], y [L, N]


class Blocks(NamedTuple):
    """What a group of threads computes at a time."""

    tokens: int
    words: int
    warps: int
    stages: int  # loads under way
    shares: int = 1  # of the words, each for a group of its own: a card has room for many groups


class Ways(NamedTuple):
    """The blocks of each kernel: powers of two for which the compiler needs no memory for sums."""

    forward: Blocks
    d_x: Blocks
    d_w: Blocks


# The fastest of those that were tried on an H200 (benchmarks/pieces.py).
ON_CARD = Ways(Blocks(64, 128, 4, 2, 4), Blocks(64, 128, 4, 3, 2), Blocks(64, 64, 4, 3))
TOKENS = max(blocks.tokens for blocks in ON_CARD)  # a power of two, as all of them


def fits(w: Array, tokens: int) -> bool:
    """Whether the kernels can do it: with whole blocks of tokens, and products a card can do."""
    return tokens % TOKENS == 0 and w.shape[0] % SMALLEST == 0 and w.shape[0] <= LARGEST


def fused_loss(ways: Ways, factor: Any, interpret: bool = False) -> Loss:
    """A function (x, W, b, y) -> losses [L, N] with these blocks and this type of factors."""
    call = partial(_call, interpret=interpret)
    most_words = max(blocks.words for blocks in ways)

    def forward(x: Array, w: Array, b: Array, y: Array) -> tuple[Array, tuple[Array, ...]]:
        real = y != NO_WORD
        place, order = real_first(real)
        number = jnp.sum(real, axis=1, dtype=jnp.int32)
        x, w = _moved(x.astype(factor), order), _widened(w.astype(factor), most_words, 0)
        wide, y = _widened(b, most_words, NEVER), _moved(y, order)
        shares = ways.forward.shares
        grid = (len(x), _number(x.shape[1], ways.forward.tokens), shares)
        shapes = [(len(x), shares, x.shape[1])] * 2
        total, own = call(_forward, ways.forward, grid, shapes, x, w, wide, y, number)
        # Behind the last real token nothing was computed.
        filled = jnp.arange(x.shape[1])[None] < number[:, None]
        total = jnp.where(filled, jax.nn.logsumexp(total, axis=1), -NEVER)
        losses = jnp.where(real, _moved(total - own.sum(1), place), 0)
        moves = real, place, order
        return losses, (x, w, wide, y, number, total, *moves, jnp.zeros((0, b.shape[1])))

    def backward(kept: tuple[Array, ...], d: Array) -> tuple[Array | None, ...]:
        x, w, wide, y, number, total, real, place, order, like_b = kept
        scale = jax.vmap(partial(scale_for, factor))(d)[:, None]
        given = (x, w, wide, y, number, total, _moved(jnp.where(real, d / scale, 0), order))
        shares = ways.d_x.shares
        grid = (len(x), _number(x.shape[1], ways.d_x.tokens), shares)
        [d_x] = call(_d_x, ways.d_x, grid, [(len(x), shares, *x.shape[1:])], *given)
        grid = (len(x), _number(w.shape[2], ways.d_w.words))
        d_w, d_b = call(_d_w, ways.d_w, grid, [w.shape, wide.shape], *given)
        words = like_b.shape[1]
        of_x, of_w = _moved(d_x.sum(1), place), d_w[..., :words]
        return of_x * scale[..., None], of_w * scale[..., None], d_b[..., :words] * scale, None

    function: Any = jax.custom_vjp(lambda *given: forward(*given)[0])
    function.defvjp(forward, backward)
    return function


def real_first(real: Array) -> tuple[Array, Array]:
    """Where each token goes and which comes to each place, [L, N], so that real ones come first."""
    number = jnp.arange(real.shape[1], dtype=jnp.int32)
    before = jnp.cumsum(real, axis=1, dtype=jnp.int32)  # real ones, up to each
    place = jnp.where(real, before - 1, before[:, -1:] + number[None] - before)
    return place, jax.vmap(lambda place: jnp.zeros_like(place).at[place].set(number))(place)


def _moved(array: Array, to: Array) -> Array:
    """The rows of each lane, in the order of `to` [L, N]."""
    return jax.vmap(lambda rows, to: rows[to])(array, to)


def _call(
    kernel: Any, blocks: Blocks, grid: tuple[int, ...], shapes: Any, *given: Array, interpret: bool
) -> Any:
    return pl.pallas_call(
        partial(kernel, blocks=blocks),
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
    )(*given)


def _widened(array: Array, block: int, value: float) -> Array:
    """Filled up to whole blocks of words, so that no kernel asks where the words end."""
    sides = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % block)]
    return jnp.pad(array, sides, constant_values=value)


def _number(size: int, block: int) -> int:
    if size % block:
        raise ValueError(f"{size} tokens are no multiple of a block of {block}")
    return size // block


def _forward(
    x: Any, w: Any, b: Any, y: Any, number: Any, total: Any, own: Any, *, blocks: Blocks
) -> None:
    lane, share = pl.program_id(0), pl.program_id(2)
    tokens = pl.ds(pl.program_id(1) * blocks.tokens, blocks.tokens)
    factors = _factors(x, lane, tokens)
    target = triton.load(y.at[lane, tokens])

    last_block = w.shape[2] // blocks.words - 1

    def bias(j: Array) -> Array:
        return triton.load(
            b.at[lane, pl.ds(jnp.minimum(j, last_block) * blocks.words, blocks.words)]
        )

    def block(j: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        added, largest, scaled, found = carry
        coming = bias(j + 1)  # on its way while this block is computed
        words = pl.ds(j * blocks.words, blocks.words)
        a = _product(factors, _weights(w, lane, words)) + added[None]
        new = jnp.maximum(largest, a.max(1))
        scaled = scaled * _exp(largest - new) + _exp(a - new[:, None]).sum(1)
        own = jnp.where(_is_target(words, target[:, None], a.shape, 1), a, 0.0).sum(1)
        return coming, new, scaled, found + own

    zeros = jnp.zeros(blocks.tokens, jnp.float32)
    first, last = _turns(tokens.start < triton.load(number.at[lane]), share, w, blocks)
    start = (bias(first), zeros + NEVER, zeros, zeros)
    _, largest, scaled, found = lax.fori_loop(first, last, block, start)
    triton.store(total.at[lane, share, tokens], largest + jnp.log(scaled))
    triton.store(own.at[lane, share, tokens], found)


def _d_x(
    x: Any, w: Any, b: Any, y: Any, number: Any, total: Any, d: Any, d_x: Any, *, blocks: Blocks
) -> None:
    lane, share = pl.program_id(0), pl.program_id(2)
    tokens = pl.ds(pl.program_id(1) * blocks.tokens, blocks.tokens)
    factors = _factors(x, lane, tokens)
    of_tokens = [triton.load(each.at[lane, tokens])[:, None] for each in (y, total, d)]

    def block(j: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        words = pl.ds(j * blocks.words, blocks.words)
        weights = _weights(w, lane, words)
        a = _product(factors, weights) + triton.load(b.at[lane, words])[None]
        d_a = _d_logits(a, words, 1, *of_tokens).astype(x.dtype)
        return tuple(s + triton.dot(d_a, each.T) for s, each in zip(sums, weights, strict=True))

    start = tuple(jnp.zeros((blocks.tokens, part.size), jnp.float32) for part in _parts(x.shape[2]))
    real = tokens.start < triton.load(number.at[lane])
    sums = lax.fori_loop(*_turns(real, share, w, blocks), block, start)
    for part, s in zip(_parts(x.shape[2]), sums, strict=True):
        triton.store(d_x.at[lane, share, tokens, part], s)


def _d_w(
    x: Any,
    w: Any,
    b: Any,
    y: Any,
    number: Any,
    total: Any,
    d: Any,
    d_w: Any,
    d_b: Any,
    *,
    blocks: Blocks,
) -> None:
    lane, words = pl.program_id(0), pl.ds(pl.program_id(1) * blocks.words, blocks.words)
    # Words come first here: a product of logits then has their gradients where they are computed.
    weights = [part.T for part in _weights(w, lane, words)]
    bias = triton.load(b.at[lane, words])[:, None]

    def block(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        *of_parts, of_bias = sums
        tokens = pl.ds(i * blocks.tokens, blocks.tokens)
        factors = _factors(x, lane, tokens)
        of_tokens = [triton.load(each.at[lane, tokens])[None] for each in (y, total, d)]
        a = _product(weights, [part.T for part in factors]) + bias
        d_a = _d_logits(a, words, 0, *of_tokens)
        rounded = d_a.astype(x.dtype)
        added = [s + triton.dot(rounded, f) for s, f in zip(of_parts, factors, strict=True)]
        return (*added, of_bias + d_a.sum(1))

    shapes = [(blocks.words, part.size) for part in _parts(x.shape[2])] + [(blocks.words,)]
    start = tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)
    filled = pl.cdiv(triton.load(number.at[lane]), blocks.tokens)
    *of_parts, of_bias = lax.fori_loop(0, filled, block, start)
    for part, s in zip(_parts(x.shape[2]), of_parts, strict=True):
        triton.store(d_w.at[lane, part, words], s.T)
    triton.store(d_b.at[lane, words], of_bias)


def _turns(real: Array, share: Array, w: Any, blocks: Blocks) -> tuple[Array, Array]:
    """Which blocks of words are a share; none, if no token is real."""
    number = w.shape[2] // blocks.words
    first, last = (number * i // blocks.shares for i in (share, share + 1))
    return first, jnp.where(real, last, first)


def _parts(size: int) -> list[Any]:
    """A size as powers of two, which is what a kernel can load: 96 is 64 and 32."""
    found, start = [], 0
    while start < size:
        part = 1 << ((size - start).bit_length() - 1)
        found.append(pl.ds(start, part))
        start += part
    return found


def _factors(x: Any, lane: Array, tokens: Any) -> list[Array]:
    return [triton.load(x.at[lane, tokens, part]) for part in _parts(x.shape[2])]


def _weights(w: Any, lane: Array, words: Any) -> list[Array]:
    return [triton.load(w.at[lane, part, words]) for part in _parts(w.shape[1])]


def _product(left: list[Array], right: list[Array]) -> Array:
    """Of two matrices, from the parts over which they are added up."""
    products = [triton.dot(a, b) for a, b in zip(left, right, strict=True)]
    return sum(products[1:], products[0])


def _is_target(words: Any, target: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Which word of a block, along an axis, is the y of its token."""
    return words.start + lax.broadcasted_iota(jnp.int32, shape, axis) == target


def _d_logits(a: Array, words: Any, axis: int, target: Array, total: Array, d: Array) -> Array:
    ones = _is_target(words, target, a.shape, axis).astype(a.dtype)
    return (_exp(a - total) - ones) * d


def _exp(x: Array) -> Array:
    """e^x as a card computes it fastest: off by 2^-24 |x|, which a product's rounding hides."""
    return jnp.exp2(x * math.log2(math.e))
