# SPDX-License-Identifier: Apache-2.0
"""What a group of threads does in the kernels of `pooled_convolution`, whose symbols these are.

x, w and d are split into parts, all of which are [pixels or places, channels].
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from agnosticfl.models.helpers.split_factors import Factors, Precision

SIDE = 3  # of w, in pixels
FOUR = [(0, 0), (0, 1), (1, 0), (1, 1)]  # (p, q), the places of a block


class Blocks(NamedTuple):
    """What a group of threads computes at a time."""

    places: int  # blocks of 2 × 2 places
    warps: int
    stages: int  # loads under way
    together: int  # pixels of w (1, 3, 9) that are written out; of d_w: how many `places` in turn
    deep: int = 64  # channels at a time that are added up over: of x, and of d in d_x


class Grid(NamedTuple):
    """The sizes of images, and the blocks of what is computed of them."""

    images: int
    height: int
    width: int
    down: int  # blocks in a column
    right: int

    @property
    def blocks(self) -> int:
        return self.images * self.down * self.right


def forward(
    x: Any,
    w: Any,
    b: Any,
    out: Any,
    won: Any,
    *,
    pieces: int,
    grid: Grid,
    blocks: Blocks,
    precision: Precision,
) -> None:
    """Σ x w at the four places of each block, the largest of them, and which they are."""
    start = pl.program_id(0) * blocks.places
    image, row, column, real = _places(start, blocks.places, grid)
    corner = (image * grid.height + 2 * row) * grid.width + 2 * column

    def pixel(i: Any, j: Any, piece: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        weights = [part[(i * SIDE + j) * pieces + piece] for part in w]
        places = [corner + (i + p) * grid.width + (j + q) for p, q in FOUR]
        seen = [[part[place * pieces + piece] for part in x] for place in places]
        return tuple(s + precision.dot(a, weights) for s, a in zip(sums, seen, strict=True))

    zeros = tuple(jnp.zeros((blocks.places, out.shape[1]), jnp.float32) for _ in FOUR)
    four = _over_pixels(pixel, zeros, blocks.together, pieces)
    largest = _larger(_larger(four[0], four[1]), _larger(four[2], four[3]))
    pooled = largest + b[...][None]
    equal = sum((a == largest).astype(jnp.int32) << bit for bit, a in enumerate(four))
    here = pl.ds(start, blocks.places)
    triton.store(out.at[here], jnp.where(pooled <= 0, 0.0, pooled), mask=real[:, None])
    winners = jnp.where(pooled > 0, equal, 0).astype(jnp.int8)
    triton.store(won.at[here], winners, mask=real[:, None])


def d_x(
    d: Any,
    won: Any,
    w: Any,
    result: Any,
    *,
    down: int,
    right: int,
    pieces: int,
    grid: Grid,
    blocks: Blocks,
    precision: Precision,
) -> None:
    """Σ g w^T at the four pixels of each block; `down` and `right` are those of the pooled."""
    start = pl.program_id(0) * blocks.places
    image, row, column, _ = _places(start, blocks.places, grid)

    def gradient(y: Any, z: Any, piece: Any) -> Factors:
        """g at the place (2 row + y, 2 column + z), where y and z may be negative."""
        r, c = row + (y >> 1), column + (z >> 1)
        there = (r >= 0) & (r < down) & (c >= 0) & (c < right)
        place = jnp.where(there, (image * down + r) * right + c, 0) * pieces + piece
        bit = 2 * (y & 1) + (z & 1)
        winner = ((won[place].astype(jnp.int32) >> bit) & 1 == 1) & there[:, None]
        return [jnp.where(winner, part[place], 0) for part in d]

    def pixel(i: Any, j: Any, piece: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        weights = [part[(i * SIDE + j) * pieces + piece] for part in w]
        seen = [gradient(p - i, q - j, piece) for p, q in FOUR]
        return tuple(s + precision.dot(g, weights) for s, g in zip(sums, seen, strict=True))

    zeros = tuple(jnp.zeros((blocks.places, result.shape[1]), jnp.float32) for _ in FOUR)
    corner = (image * grid.height + 2 * row) * grid.width + 2 * column
    for (p, q), s in zip(FOUR, _over_pixels(pixel, zeros, blocks.together, pieces), strict=True):
        result[corner + p * grid.width + q] = s


def d_w(
    x: Any, d: Any, won: Any, result: Any, *, grid: Grid, blocks: Blocks, precision: Precision
) -> None:
    """Σ x^T g over some of the blocks, for one row i of w: [d, c] for each of its pixels."""
    piece, i = pl.program_id(0), pl.program_id(1)

    def turn(k: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        start = (piece * blocks.together + k) * blocks.places
        image, row, column, real = _places(start, blocks.places, grid)
        corner = (image * grid.height + 2 * row + i) * grid.width + 2 * column
        place = jnp.minimum(start + jnp.arange(blocks.places), grid.blocks - 1)
        winners = jnp.where(real[:, None], won[place].astype(jnp.int32), 0)
        each = [part[place] for part in d]
        for bit, (p, q) in enumerate(FOUR):
            g = [jnp.where((winners >> bit) & 1 == 1, part, 0).T for part in each]
            seen = [[part[corner + p * grid.width + (q + j)] for part in x] for j in range(SIDE)]
            sums = tuple(s + precision.dot(g, a) for s, a in zip(sums, seen, strict=True))
        return sums

    zeros = tuple(jnp.zeros(result.shape[2:], jnp.float32) for _ in range(SIDE))
    for j, s in enumerate(lax.fori_loop(0, blocks.together, turn, zeros)):
        result[piece, i * SIDE + j] = s


def _larger(a: Array, b: Array) -> Array:
    """The larger of each, or NaN if one is: a card's own maximum would take the other one.

    A model that diverged must be seen to have.
    """
    return jnp.where((a >= b) | (a != a), a, b)


def _over_pixels(
    add: Any, sums: tuple[Array, ...], together: int, pieces: int
) -> tuple[Array, ...]:
    """add(i, j, piece, sums) for all pixels (i, j) of w and pieces of its channels.

    It is one loop, in which so many pixels are written out.
    """
    turns = SIDE * SIDE // together

    def some(k: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        piece, first = _parted(k, turns) if pieces > 1 else (0, k)
        for m in range(together):
            i, j = (first, m) if together == SIDE else _parted(first * together + m, SIDE)
            sums = add(i, j, piece, sums)
        return sums

    if turns * pieces == 1:
        return some(0, sums)
    return lax.fori_loop(0, turns * pieces, some, sums)


def _places(start: Any, number: int, grid: Grid) -> tuple[Array, Array, Array, Array]:
    """The image, row and column of each block of 2 × 2 places, and whether there is one.

    The last one stands for those after it: whoever writes them writes the same there again.
    """
    block = start + jnp.arange(number)
    real = block < grid.blocks
    block = jnp.minimum(block, grid.blocks - 1)
    image, within = _parted(block, grid.down * grid.right)
    return image, *_parted(within, grid.right), real


def _parted(number: Any, by: int) -> tuple[Any, Any]:
    """Quotient and rest of a number that is not negative, which is less work than of any."""
    if isinstance(number, int):
        return divmod(number, by)
    divisor = jnp.full_like(number, by)
    return lax.div(number, divisor), lax.rem(number, divisor)
