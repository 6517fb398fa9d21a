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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from agnosticfl.models.helpers import pooled_convolution_kernels as bodies
from agnosticfl.models.helpers.pooled_convolution_kernels import SIDE, Blocks, Grid
from agnosticfl.models.helpers.split_factors import PRECISIONS, Precision, Split

SMALLEST, LARGEST = 16, (32, 64)  # c and d: powers of two that fit into a multiprocessor

Way = Callable[[Array, Array, Array], Array]  # x [n, h, w, c], w [3, 3, c, d], b [d] -> pooled


class Kernel(NamedTuple):
    """How a kernel is run, whatever it computes."""

    blocks: Blocks
    precision: Precision
    interpret: bool = False


class Ways(NamedTuple):
    """How the result and each gradient is computed."""

    forward: Kernel
    d_x: Kernel
    d_w: Kernel


# The fastest on an H200 (benchmarks/pieces_cnn.py).
IN_PARTS = Blocks(32, 4, 3, 1), Blocks(16, 4, 2, 3, 64), Blocks(32, 4, 2, 6)
OF_ONE = Blocks(64, 4, 2, 3), Blocks(64, 4, 1, 9, 64), Blocks(32, 4, 3, 6)
ON_CARD = {
    name: Ways(*(Kernel(blocks, precision) for blocks in (OF_ONE, IN_PARTS)[precision.parts > 1]))
    for name, precision in PRECISIONS.items()
}


def fits(w: Array) -> bool:
    """Whether the kernels can do it with this w: [down, right, c, d]."""
    sizes = zip(w.shape[2:], LARGEST, strict=True)
    powers = all(SMALLEST <= c <= largest and c & (c - 1) == 0 for c, largest in sizes)
    return w.shape[:2] == (SIDE, SIDE) and powers


def on_card(precision: str) -> Way:
    """The function (x, w, b) -> pooled in the fastest ways."""
    return pooled_convolution(ON_CARD[precision])


def pooled_convolution(ways: Ways) -> Way:
    """A function (x, w, b) -> pooled [n, h', w', d] that is computed in these ways."""

    def forward(x: Array, w: Array, b: Array) -> tuple[Array, tuple[Any, ...]]:
        split = ways.forward.precision.split
        out, won = convolved(ways.forward, split(x), split(w), b)
        # What is split in the same way twice is one for the compiler.
        return out, (ways.d_w.precision.split(x), ways.d_x.precision.split(w), won)

    def backward(kept: tuple[Any, ...], d: Array) -> tuple[Array, ...]:
        x, w, won = kept
        each, shape = d * share(won), x.parts[0].shape
        d_x = gradient_of_x(ways.d_x, shape, w, ways.d_x.precision.split(each), won)
        d_w = gradient_of_w(ways.d_w, x, ways.d_w.precision.split(each), won)
        return d_x, d_w, jnp.where(won > 0, d, 0).sum((0, 1, 2))

    def without_gradient(x: Array, w: Array, b: Array) -> Array:
        # Or all parts of x are computed by themselves, each from what was before x.
        x = jax.lax.optimization_barrier(x) if ways.forward.precision.parts > 1 else x
        return forward(x, w, b)[0]

    function: Any = jax.custom_vjp(without_gradient)
    function.defvjp(forward, backward)
    return function


def share(won: Array) -> Array:
    """1 / how many places of a block have its largest number: each of them gets as much of d."""
    number = sum((won >> bit) & 1 for bit in range(4))
    return 1 / jnp.maximum(number, 1).astype(jnp.float32)


def convolved(kernel: Kernel, x: Split, w: Split, b: Array) -> tuple[Array, Array]:
    """The pooled result, and which places of each block won: bit 2 p + q, none where it is 0."""
    images, height, width, channels = x.parts[0].shape
    grid = Grid(images, height, width, (height - SIDE + 1) // 2, (width - SIDE + 1) // 2)
    pooled = (images, grid.down, grid.right, len(b))
    shapes = [jax.ShapeDtypeStruct((grid.blocks, len(b)), kind) for kind in (jnp.float32, jnp.int8)]
    programs = (pl.cdiv(grid.blocks, kernel.blocks.places),)
    deep = min(kernel.blocks.deep, channels)
    forward = partial(bodies.forward, pieces=channels // deep)
    scale = x.scale * w.scale
    weights = tuple(part.reshape(-1, deep, len(b)) for part in w.parts)
    given = _rows(x.parts, deep), weights, b / scale
    out, won = _call(forward, kernel, grid, programs, shapes, *given)
    return out.reshape(pooled) * scale, won.reshape(pooled)


def gradient_of_x(kernel: Kernel, shape: Sequence[int], w: Split, d: Split, won: Array) -> Array:
    """d_x of this shape from what of d each place that won has."""
    images, height, width, channels = shape
    # An odd row or column has none beside it: it gets one that is cut off again.
    down, right = pl.cdiv(height, 2), pl.cdiv(width, 2)
    grid = Grid(images, 2 * down, 2 * right, down, right)
    shapes = [jax.ShapeDtypeStruct((4 * grid.blocks, channels), jnp.float32)]
    programs = (pl.cdiv(grid.blocks, kernel.blocks.places),)
    deep = min(kernel.blocks.deep, won.shape[3])
    pooled = partial(bodies.d_x, down=won.shape[1], right=won.shape[2], pieces=won.shape[3] // deep)
    turned = tuple(part.swapaxes(2, 3).reshape(-1, deep, channels) for part in w.parts)
    given = _rows(d.parts, deep), *_rows((won,), deep), turned
    [d_x] = _call(pooled, kernel, grid, programs, shapes, *given)
    d_x = d_x.reshape(images, grid.height, grid.width, channels)[:, :height, :width]
    return d_x * (w.scale * d.scale)


def gradient_of_w(kernel: Kernel, x: Split, d: Split, won: Array) -> Array:
    """d_w: of pieces of the images by programs of their own, added up in a fixed order."""
    images, height, width, channels = x.parts[0].shape
    down, right, out = won.shape[1:]
    grid = Grid(images, height, width, down, right)
    blocks = kernel.blocks
    turns = min(blocks.together, pl.cdiv(grid.blocks, blocks.places))
    kernel = kernel._replace(blocks=blocks._replace(together=turns))
    pieces = pl.cdiv(grid.blocks, blocks.places * turns)
    shapes = [jax.ShapeDtypeStruct((pieces, SIDE * SIDE, out, channels), jnp.float32)]
    given = _rows(x.parts), _rows(d.parts), *_rows((won,))
    [d_w] = _call(bodies.d_w, kernel, grid, (pieces, SIDE), shapes, *given)
    d_w = d_w.sum(0).reshape(SIDE, SIDE, out, channels).swapaxes(2, 3)
    return d_w * (x.scale * d.scale)


def _rows(parts: tuple[Array, ...], length: int | None = None) -> tuple[Array, ...]:
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
