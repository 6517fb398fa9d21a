# SPDX-License-Identifier: Apache-2.0
"""A convolution with bias, ReLU and pooling on an NVIDIA card, and its gradients.

    out[n, R, C] = max over p, q in {0, 1} of relu(a[n, 2 R + p, 2 C + q]),
    a[n, r, c] = b + Σ_{i, j} x[n, r + i, c + j] w[i, j],

and with g = d out / d a, which is a share of d where `a` won and 0 elsewhere,

    d_x[n, r, c] = Σ_{i, j} g[n, r - i, c - j] w[i, j]^T,
    d_w[i, j] = Σ_{n, r, c} x[n, r + i, c + j]^T g[n, r, c].

One product over all patches writes nine copies of x and reads them again, forward and back, and `a`
is four times what is left of it. Here neither is ever in memory: kernels read x, and d and which
places won, where their products need them. A group of threads has blocks of 2 × 2 places as four
arrays, one for each (p, q), so that pooling compares whole arrays.

`benchmarks/pieces_cnn.py` times this beside the plain way.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from agnosticfl.models.helpers.split_factors import PRECISIONS, Factors, Precision

SIDE = 3  # of w, in pixels
SMALLEST, LARGEST = 16, (32, 64)  # c and d: powers of two that fit into a multiprocessor
FOUR = [(0, 0), (0, 1), (1, 0), (1, 1)]  # (p, q), the places of a block

Parts: TypeAlias = tuple[Array, ...]  # an array as a sum of some
Way = Callable[[Array, Array, Array], Array]  # x [n, h, w, c], w [3, 3, c, d], b [d] -> pooled


class Blocks(NamedTuple):
    """What a group of threads computes at a time."""

    places: int  # blocks of 2 × 2 places
    warps: int
    stages: int  # loads under way
    together: int  # pixels of w (1, 3, 9) that are written out; of d_w: how many `places` in turn
    deep: int = 64  # channels at a time that are added up over: of x, and of d in d_x


class Ways(NamedTuple):
    """The blocks of each kernel."""

    forward: Blocks
    d_x: Blocks
    d_w: Blocks


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


class Kernel(NamedTuple):
    """How a kernel is run, whatever it computes."""

    blocks: Blocks
    precision: Precision
    interpret: bool = False


ON_CARD = {
    "float32": Ways(Blocks(64, 4, 3, 1, 16), Blocks(64, 4, 3, 1, 16), Blocks(16, 4, 3, 24)),
    "tf32": Ways(Blocks(64, 8, 2, 1), Blocks(64, 8, 2, 1, 32), Blocks(32, 4, 2, 12)),
    "bf16": Ways(Blocks(64, 4, 3, 3), Blocks(64, 4, 2, 3, 32), Blocks(64, 4, 2, 3)),
}


def fits(w: Array) -> bool:
    """Whether the kernels can do it with this w: [down, right, c, d]."""
    sizes = zip(w.shape[2:], LARGEST, strict=True)
    powers = all(SMALLEST <= c <= largest and c & (c - 1) == 0 for c, largest in sizes)
    return w.shape[:2] == (SIDE, SIDE) and powers


def on_card(precision: str) -> Way:
    """The function (x, w, b) -> pooled with the fastest blocks."""
    return pooled_convolution(ON_CARD[precision], PRECISIONS[precision])


def pooled_convolution(ways: Ways, precision: Precision, interpret: bool = False) -> Way:
    """A function (x, w, b) -> pooled [n, h', w', d] with these blocks and this precision."""

    def forward(x: Array, w: Array, b: Array) -> tuple[Array, tuple[Any, ...]]:
        factors = precision.split(x), precision.split(w)
        out, won = convolved(Kernel(ways.forward, precision, interpret), *factors, b)
        return out, (*factors, won)

    def backward(kept: tuple[Any, ...], d: Array) -> tuple[Array, ...]:
        x, w, won = kept
        each = precision.split(d * share(won))
        d_x = gradient_of_x(Kernel(ways.d_x, precision, interpret), x[0].shape, w, each, won)
        d_w = gradient_of_w(Kernel(ways.d_w, precision, interpret), x, each, won)
        return d_x, d_w, jnp.where(won > 0, d, 0).sum((0, 1, 2))

    function: Any = jax.custom_vjp(lambda *given: forward(*given)[0])
    function.defvjp(forward, backward)
    return function


def share(won: Array) -> Array:
    """1 / how many places of a block have its largest number: each of them gets as much of d."""
    number = sum((won >> bit) & 1 for bit in range(4))
    return 1 / jnp.maximum(number, 1).astype(jnp.float32)


def convolved(kernel: Kernel, x: Parts, w: Parts, b: Array) -> tuple[Array, Array]:
    """The pooled result, and which places of each block won: bit 2 p + q, none where it is 0."""
    images, height, width, channels = x[0].shape
    grid = Grid(images, height, width, (height - SIDE + 1) // 2, (width - SIDE + 1) // 2)
    pooled = (images, grid.down, grid.right, len(b))
    shapes = [jax.ShapeDtypeStruct((grid.blocks, len(b)), kind) for kind in (jnp.float32, jnp.int8)]
    programs = (pl.cdiv(grid.blocks, kernel.blocks.places),)
    deep = min(kernel.blocks.deep, channels)
    forward = partial(_forward, pieces=channels // deep)
    given = _rows(x, deep), tuple(part.reshape(-1, deep, len(b)) for part in w), b
    out, won = _call(forward, kernel, grid, programs, shapes, *given)
    return out.reshape(pooled), won.reshape(pooled)


def gradient_of_x(kernel: Kernel, shape: Sequence[int], w: Parts, d: Parts, won: Array) -> Array:
    """d_x of this shape from what of d each place that won has."""
    images, height, width, channels = shape
    # An odd row or column has none beside it: it gets one that is cut off again.
    down, right = pl.cdiv(height, 2), pl.cdiv(width, 2)
    grid = Grid(images, 2 * down, 2 * right, down, right)
    shapes = [jax.ShapeDtypeStruct((4 * grid.blocks, channels), jnp.float32)]
    programs = (pl.cdiv(grid.blocks, kernel.blocks.places),)
    deep = min(kernel.blocks.deep, won.shape[3])
    pooled = partial(_d_x, down=won.shape[1], right=won.shape[2], pieces=won.shape[3] // deep)
    turned = tuple(part.swapaxes(2, 3).reshape(-1, deep, channels) for part in w)
    given = _rows(d, deep), *_rows((won,), deep), turned
    [d_x] = _call(pooled, kernel, grid, programs, shapes, *given)
    return d_x.reshape(images, grid.height, grid.width, channels)[:, :height, :width]


def gradient_of_w(kernel: Kernel, x: Parts, d: Parts, won: Array) -> Array:
    """d_w: of pieces of the images by programs of their own, added up in a fixed order."""
    images, height, width, channels = x[0].shape
    down, right, out = won.shape[1:]
    grid = Grid(images, height, width, down, right)
    blocks = kernel.blocks
    turns = min(blocks.together, pl.cdiv(grid.blocks, blocks.places))
    kernel = kernel._replace(blocks=blocks._replace(together=turns))
    pieces = pl.cdiv(grid.blocks, blocks.places * turns)
    shapes = [jax.ShapeDtypeStruct((pieces, SIDE * SIDE, out, channels), jnp.float32)]
    given = _rows(x), _rows(d), *_rows((won,))
    [d_w] = _call(_d_w, kernel, grid, (pieces, SIDE), shapes, *given)
    return d_w.sum(0).reshape(SIDE, SIDE, out, channels).swapaxes(2, 3)


def _rows(parts: Parts, length: int | None = None) -> Parts:
    return tuple(part.reshape(-1, length or part.shape[-1]) for part in parts)


def _call(
    function: Any, kernel: Kernel, grid: Grid, programs: tuple[int, ...], shapes: Any, *given: Any
) -> Any:
    blocks, precision, interpret = kernel
    return pl.pallas_call(
        partial(function, grid=grid, blocks=blocks, precision=precision),
        grid=programs,
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
    )(*given)


def _forward(
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
    largest = jnp.maximum(jnp.maximum(four[0], four[1]), jnp.maximum(four[2], four[3]))
    pooled = largest + b[...][None]
    equal = sum((a == largest).astype(jnp.int32) << bit for bit, a in enumerate(four))
    here = pl.ds(start, blocks.places)
    triton.store(out.at[here], jnp.maximum(pooled, 0.0), mask=real[:, None])
    winners = jnp.where(pooled > 0, equal, 0).astype(jnp.int8)
    triton.store(won.at[here], winners, mask=real[:, None])


def _d_x(
    d: Any,
    won: Any,
    w: Any,
    d_x: Any,
    *,
    down: int,
    right: int,
    pieces: int,
    grid: Grid,
    blocks: Blocks,
    precision: Precision,
) -> None:
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

    zeros = tuple(jnp.zeros((blocks.places, d_x.shape[1]), jnp.float32) for _ in FOUR)
    corner = (image * grid.height + 2 * row) * grid.width + 2 * column
    for (p, q), s in zip(FOUR, _over_pixels(pixel, zeros, blocks.together, pieces), strict=True):
        d_x[corner + p * grid.width + q] = s


def _d_w(
    x: Any, d: Any, won: Any, d_w: Any, *, grid: Grid, blocks: Blocks, precision: Precision
) -> None:
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

    zeros = tuple(jnp.zeros(d_w.shape[2:], jnp.float32) for _ in range(SIDE))
    for j, s in enumerate(lax.fori_loop(0, blocks.together, turn, zeros)):
        d_w[piece, i * SIDE + j] = s


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
