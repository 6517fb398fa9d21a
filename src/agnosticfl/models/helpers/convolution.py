# SPDX-License-Identifier: Apache-2.0
"""A convolution on an NVIDIA card without its patches in memory, for what needs no gradient.

    out[n, r, c] = Σ_{i, j} x[n, r + i, c + j] w[i, j],

as a sum of small matrix products that read x where they need it. One product over all patches
writes nine copies of x, and reads them again, which takes twice as long. A step with its gradients
gains nothing from this: the gradient of w needs the patches.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

PLACES = 128  # of the result, that a group of threads computes
WARPS = 8
SMALLEST, LARGEST = 16, 128  # channels: powers of two in this range, whose products a card can do


class Grid(NamedTuple):
    """The pixels of the result, and those of what it is computed from."""

    places: int  # of all images
    height: int
    width: int
    from_height: int
    from_width: int
    down: int  # of w
    right: int


def fits(w: Array) -> bool:
    """Whether `convolution_on_card` can do it with this w: [down, right, c, d]."""
    return all(SMALLEST <= c <= LARGEST and c & (c - 1) == 0 for c in w.shape[2:])


def convolution_on_card(x: Array, w: Array, interpret: bool = False) -> Array:
    """The VALID convolution of x [n, height, width, c] and w [down, right, c, d], stride 1."""
    images, from_height, from_width, channels = x.shape
    down, right, _, out = w.shape
    height, width = from_height - down + 1, from_width - right + 1
    grid = Grid(images * height * width, height, width, from_height, from_width, down, right)
    result = pl.pallas_call(
        partial(_some_places, grid=grid),
        grid=(pl.cdiv(grid.places, PLACES),),
        out_shape=jax.ShapeDtypeStruct((grid.places, out), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=interpret,
    )(x.reshape(-1, channels), w.reshape(-1, channels, out))
    return result.reshape(images, height, width, out)


def _some_places(x: Any, w: Any, out: Any, *, grid: Grid) -> None:
    """What a group of threads does: PLACES of the result, all channels."""
    start = pl.program_id(0) * PLACES
    place = start + jnp.arange(PLACES)
    real = place < grid.places
    image, within = place // (grid.height * grid.width), place % (grid.height * grid.width)
    row, column = within // grid.width, within % grid.width
    corner = (image * grid.from_height + row) * grid.from_width + column
    total = jnp.zeros((PLACES, out.shape[1]), jnp.float32)
    for i in range(grid.down):
        for j in range(grid.right):
            pixels = x[jnp.where(real, corner + i * grid.from_width + j, 0)]
            total += triton.dot(pixels, w[i * grid.right + j])
    triton.store(out.at[pl.ds(start, PLACES)], total, mask=real[:, None])
