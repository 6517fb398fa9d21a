# SPDX-License-Identifier: Apache-2.0
"""How exactly matrix products are computed where the hardware has a choice.

Only the factors of a product are rounded. What is added up, and everything else (losses, updates,
sums over clients, the server's state), stays float32. A CPU has no such choice: there all three are
float32.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core.model import Model
from agnosticfl.errors import choose

P = ParamSpec("P")
R = TypeVar("R")

# Ours -> JAX's. An accelerator's own default for float32 would be tf32.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "BF16_BF16_F32"}
# Types of 16 bits with as much mantissa, for products that wait for the memory.
HALVES: dict[str, Any] = {"tf32": jnp.float16, "bf16": jnp.bfloat16}


def in_precision(function: Callable[P, R], precision: str) -> Callable[P, R]:
    """`function`, with every matrix product that it traces (gradients too) in this precision."""
    name = PRECISIONS[choose(precision, PRECISIONS, "precision")]

    @functools.wraps(function)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        with jax.default_matmul_precision(name):
            return function(*args, **options)

    return wrapped


def precision_in_use() -> str:
    """How exactly what is traced here computes its products; float32 if nobody has said."""
    config: Any = jax.config
    theirs = config.jax_default_matmul_precision
    return next((ours for ours, name in PRECISIONS.items() if name == theirs), "float32")


def is_bf16() -> bool:
    """Whether that is bf16."""
    return precision_in_use() == "bf16"


def half_in_use() -> Any:
    """The type of 16 bits with the mantissa of that; None for float32."""
    return HALVES.get(precision_in_use())


@functools.lru_cache(16)  # the same model again is no other one: what was compiled for it serves
def model_in_precision(model: Model, precision: str) -> Model:
    """`model` as evaluation calls it; what is no program of JAX stays as it is."""
    if model.eager:
        return model
    forward = model.forward
    return model._replace(
        per_example_loss=in_precision(model.per_example_loss, precision),
        per_example_metrics=in_precision(model.per_example_metrics, precision),
        forward=None if forward is None else in_precision(forward, precision),
    )


def rounded_factor(factor: Array) -> Array:
    """A factor of many products, as all of them will see it.

    Under bf16 each product would round it by itself, and read twice the bytes every time.
    """
    return half(factor) if is_bf16() else factor


def half(factor: Array) -> Array:
    """A factor in 16 bits; a CPU computes in float32 whatever is asked for.

    Under tf32 only what is known to be neither large nor tiny: float16 ends at 65504, and loses
    bits below 6 · 10^-5.
    """
    kind = half_in_use()
    if kind is None or jax.default_backend() == "cpu" or factor.dtype == kind:
        return factor
    # The barrier keeps the compiler from rounding inside the products after all.
    return jax.lax.optimization_barrier(factor.astype(kind))


def scale_for(kind: Any, x: Array, top: int = 0) -> Array:
    """What an array is divided by before it is made of factors of this type.

    For float16 a power of two, which rounds nothing, and with which its largest number is at least
    2^top and less than twice that: nothing is too small then that would count beside it. What is
    not finite does not count: it may be in one example of many. bf16 has all sizes of float32.
    """
    if kind != jnp.float16:
        return jnp.ones(())
    largest = jnp.max(jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
    exponent = jax.lax.bitcast_convert_type(largest, jnp.int32) >> 23
    return jax.lax.bitcast_convert_type((jnp.maximum(exponent, top + 1) - top) << 23, jnp.float32)


@jax.custom_vjp
def product(x: Array, w: Array) -> Array:
    """x @ w, [… , i] by [i, j], whose factors (and its gradient's) are rounded once and kept."""
    return jnp.matmul(rounded_factor(x), rounded_factor(w), preferred_element_type=jnp.float32)


def _forward(x: Array, w: Array) -> tuple[Array, Any]:
    kept = rounded_factor(x), rounded_factor(w)
    # The empty arrays remember the types that the gradients must have.
    return product(*kept), (*kept, jnp.zeros(0, x.dtype), jnp.zeros(0, w.dtype))


def _backward(kept: Any, d: Array) -> tuple[Array, Array]:
    x, w, like_x, like_w = kept
    d = rounded_factor(d)
    d_w = product(x.reshape(-1, x.shape[-1]).T, d.reshape(-1, d.shape[-1]))
    return product(d, w.T).astype(like_x.dtype), d_w.astype(like_w.dtype)


product.defvjp(_forward, _backward)
