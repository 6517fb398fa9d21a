# SPDX-License-Identifier: Apache-2.0
"""Products in a kernel for an NVIDIA card, as exact as a precision of ours asks for.

Matrix units of such a card take bf16 or tf32, and a product of true float32 takes ten times as long
as one of bf16. But a float32 number is the sum of three in bf16, x = x_1 + x_2 + x_3, up to what
float32 rounds away, and of the nine products of two such sums, the three that are smaller than
x w by 2^-26 are not needed. What is left is six products in bf16.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

Factors: TypeAlias = Sequence[Array]  # the parts of a matrix


class Precision(NamedTuple):
    """What a factor is split into, and how two parts are multiplied."""

    factor: Any
    products: Any
    parts: int = 1

    def split(self, x: Array) -> tuple[Array, ...]:
        """An array as a sum of arrays of factors, the largest first."""
        found: list[Array] = []
        for _ in range(self.parts - 1):
            # The compiler may not skip a rounding: what it takes off is the next part.
            part = lax.reduce_precision(x, *_bits(self.factor))
            found.append(part.astype(self.factor))
            x = x - part
        return (*found, x.astype(self.factor))

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
        return total


# Of float32 factors, HIGH means tf32; of bf16 there is one kind of product.
PRECISIONS = {
    "float32": Precision(jnp.bfloat16, lax.Precision.HIGHEST, 3),
    "tf32": Precision(jnp.float32, lax.Precision.HIGH),
    "bf16": Precision(jnp.bfloat16, lax.Precision.HIGHEST),
}
# Of float32 factors as well: the kernel itself splits them into two in tf32, for three products.
TF32_X3 = Precision(jnp.float32, lax.DotAlgorithmPreset.TF32_TF32_F32_X3)


def _bits(kind: Any) -> tuple[int, int]:
    """Of the exponent and of the mantissa."""
    info = jnp.finfo(kind)
    return int(info.nexp), int(info.nmant)
