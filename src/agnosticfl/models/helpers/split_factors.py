# SPDX-License-Identifier: Apache-2.0
"""Products in a kernel for an NVIDIA card, as exact as a precision of ours asks for.

Matrix units of such a card take 16 bits or tf32, and a product of true float32 takes ten times as
long as one of 16 bits. But a float32 number is the sum of some with 16 bits. Two in float16 have 22
bits and a sign, x = x_1 + 2^-11 x_2, and of the four products of two such sums that of the smaller
ones is not needed. Three are left, whose error is that of adding up in float32. (Three in bf16 have
all bits, and take six products.) Under tf32 the first part is all.

float16 ends at 65504 and loses bits below 6 · 10^-5, so an array is scaled until its
largest number is about 2^15: only what is below 2^-28 of that has fewer bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from agnosticfl.core.precision import scale_for

TOP = 14  # float16 ends below 2^16

Factors: TypeAlias = Sequence[Array]  # the parts of a matrix


class Split(NamedTuple):
    """An array as a sum of arrays of factors, the largest first, times a scale."""

    parts: tuple[Array, ...]
    scale: Array


class Precision(NamedTuple):
    """What a factor is split into, and how two parts are multiplied."""

    factor: Any
    products: Any
    parts: int = 1
    apart: int = 1  # how many times larger than it is each part is written than the one before it

    def split(self, x: Array) -> Split:
        """An array as factors of products."""
        scale = scale_for(self.factor, x, TOP)
        x = x / scale
        found: list[Array] = []
        for _ in range(self.parts - 1):
            # The compiler may not skip a rounding: what it takes off is the next part.
            part = lax.reduce_precision(x, *_bits(self.factor))
            found.append(part.astype(self.factor))
            x = (x - part) * self.apart
        return Split((*found, x.astype(self.factor)), scale)

    def dot(self, a: Factors, b: Factors) -> Array:
        """The product in a kernel, its smallest terms first.

        They are added up from zero, and not with what there was before: a matrix unit cuts off
        what is beyond the 24 bits of a sum, where a float32 sum is rounded.
        """
        total: Any = None
        for size in reversed(range(self.parts)):
            for k in range(size + 1):
                term = triton.dot(a[k], b[size - k], precision=self.products)
                total = term if total is None else total + term
            if size > 0 and self.apart > 1:
                total = total * (1 / self.apart)
        return total


# Of 16 bits there is one kind of product.
PRECISIONS = {
    "float32": Precision(jnp.float16, lax.Precision.HIGHEST, 2, 2**11),
    "tf32": Precision(jnp.float16, lax.Precision.HIGHEST),
    "bf16": Precision(jnp.bfloat16, lax.Precision.HIGHEST),
}


def _bits(kind: Any) -> tuple[int, int]:
    """Of the exponent and of the mantissa."""
    info = jnp.finfo(kind)
    return int(info.nexp), int(info.nmant)
