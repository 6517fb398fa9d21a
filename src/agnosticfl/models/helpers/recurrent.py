# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers whose products an accelerator computes from as few bytes as it can."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core import compiling
from agnosticfl.core.precision import half, half_in_use, product, rounded_factor, scale_for

ALIGNED = 32  # numbers of a matrix's rows, as cards like them

# (c_{t-1}, the sums at each gate a_t) -> (c_t, m_t): what a cell does without any product
Unit: TypeAlias = Callable[..., tuple[Array, Array]]


class Dense(nnx.Linear):
    """x W + b, its factors rounded as `product` does."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        del out_sharding
        assert self.bias is not None
        outputs = product(inputs, self.kernel[...])
        return outputs + self.bias[...].reshape((1,) * (outputs.ndim - 1) + (-1,))


def gates(inputs: int, hidden: int, forget: Sequence[int], rngs: nnx.Rngs) -> Dense:
    """The part of a cell's gates that depends on the input, with one number in `forget` a gate.

    Where it is 1, the bias starts at 1: a cell that remembers at first learns sooner.
    """
    return Dense(
        inputs,
        len(forget) * hidden,
        kernel_init=nnx.initializers.glorot_uniform(),
        bias_init=lambda _, __, dtype: jnp.repeat(jnp.array(forget, dtype), hidden),
        rngs=rngs,
    )


def over_time(unit: Unit, recurrent: Array, projection: Array | None, z: Array) -> Array:
    """h_1 … h_T of a recurrent layer, from the inputs' part of the gates z = W x + b.

        a_t = z_t + U h_{t-1}
        c_t, m_t = unit(c_{t-1}, a_t)
        h_t = P m_t

    Args:
      recurrent: U.
      projection: P; None for h_t = m_t.
      z: [T, n, gates × hidden].

    Its gradient is that of the formulas, with two differences in how it is computed. Those of U and
    P are one product each over all time steps, because one per step would write as many numbers as
    U has each time. And of a unit's work only U h and c are kept; the rest is computed again.
    """
    if projection is None and compiling.on_nvidia() and half_in_use() is not None:
        layer = _layer_on_chip if _fits_on_chip(recurrent, z) else _layer_of_products
        return layer(unit, recurrent, z)
    return _layer(unit, recurrent, projection, z)


def _fits_on_chip(recurrent: Array, z: Array) -> bool:
    """Whether kernels of our own can keep U on the chip of the card."""
    if not compiling.on_hopper():
        return False
    from agnosticfl.models.helpers.recurrent_on_card import fits  # here: others need no Pallas

    return fits(recurrent.shape[0], recurrent.shape[1], z.shape[1])


def _forward(
    unit: Unit, recurrent: Array, projection: Array | None, z: Array
) -> tuple[Array, tuple[Any, ...]]:
    u = rounded_factor(recurrent)
    p = None if projection is None else rounded_factor(projection)
    by_gate = _by_gate(unit)

    def step(state: tuple[Array, Array], z: Array) -> Any:
        h, c = state
        uh = product(h, u)
        # Behind the barrier: else the compiler would see what is computed again, and keep it.
        kept = jax.lax.optimization_barrier((uh, c))
        c, m = by_gate(c, z + uh)
        h = m if p is None else product(m, p)
        return (h, c), (h, m, *kept)

    hidden = recurrent.shape[0] if projection is None else projection.shape[0]
    start = tuple(jnp.zeros((z.shape[1], size), z.dtype) for size in (recurrent.shape[0], hidden))
    h, m, uh, c = _loop(step, start, z)
    return h, (u, p, z, h, m, uh, c)


def _backward(unit: Unit, kept: tuple[Any, ...], d_out: Array) -> tuple[Array, Array | None, Array]:
    u, p, z, h, m, uh, c = kept
    by_gate = _by_gate(unit)

    def step(state: tuple[Array, Array], now: tuple[Array, ...]) -> Any:
        d_h, d_c = state
        d_out, z, uh, c = now
        d_h = d_h + d_out
        _, pullback = jax.vjp(by_gate, c, z + uh)
        d_c, d_a = pullback((d_c, d_h if p is None else product(d_h, p.T)))
        return (product(d_a, u.T), d_c), (d_h, d_a)

    end = jnp.zeros_like(h[0]), jnp.zeros_like(c[0])
    d_h, d_a = _loop(step, end, (d_out, z, uh, c), reverse=True)
    return _d_recurrent(h, d_a), None if p is None else _over_all(m, d_h), d_a


_layer: Any = jax.custom_vjp(lambda *given: _forward(*given)[0], nondiff_argnums=(0,))
_layer.defvjp(_forward, _backward)


def _forward_on_chip(unit: Unit, recurrent: Array, z: Array) -> tuple[Array, tuple[Any, ...]]:
    from agnosticfl.models.helpers import recurrent_on_card as kernels

    u = kernels.packed(recurrent, half_in_use())
    h, kept = kernels.forward(unit, recurrent.shape[0], u, z)
    return h.astype(z.dtype), (u, kept, h)


def _backward_on_chip(unit: Unit, kept: tuple[Any, ...], d_h: Array) -> tuple[Array, Array]:
    from agnosticfl.models.helpers import recurrent_on_card as kernels

    u, of_cells, h = kept
    scale = scale_for(u.dtype, d_h)
    d_a = kernels.backward(unit, u, of_cells, d_h / scale)
    return _d_recurrent(h, d_a) * scale, d_a.astype(d_h.dtype) * scale


def _without_gradient(unit: Unit, recurrent: Array, z: Array) -> Array:
    """The layer as products of a card, with U and h filled up with zeros.

    An NVIDIA card takes half as long for a product of matrices whose rows begin at multiples of 16
    bytes.
    """
    hidden, by_gate = recurrent.shape[0], _by_gate(unit)
    more = -hidden % ALIGNED
    u = half(recurrent).reshape(hidden, -1, hidden)
    u = jnp.pad(u, ((0, more), (0, 0), (0, more))).reshape(hidden + more, -1)

    def step(state: tuple[Array, Array], z: Array) -> Any:
        h, c = state
        uh = product(h, u).reshape(len(h), -1, hidden + more)[:, :, :hidden]
        c, m = by_gate(c, z + uh.reshape(z.shape))
        h = half(jnp.pad(m, ((0, 0), (0, more))))
        return (h, c), h

    rows = z.shape[1]
    start = half(jnp.zeros((rows, hidden + more), z.dtype)), jnp.zeros((rows, hidden))
    return _loop(step, start, z)[:, :, :hidden].astype(z.dtype)


# With gradients batches are small, and reading U is what counts; without, the products are.
_layer_on_chip: Any = jax.custom_vjp(_without_gradient, nondiff_argnums=(0,))
_layer_on_chip.defvjp(_forward_on_chip, _backward_on_chip)
_layer_of_products: Any = jax.custom_vjp(_without_gradient, nondiff_argnums=(0,))
_layer_of_products.defvjp(
    lambda unit, recurrent, z: _forward(unit, recurrent, None, z),
    lambda unit, kept, d: _backward(unit, kept, d)[::2],
)


def _by_gate(unit: Unit) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`unit` of the sums at all gates, side by side."""
    return lambda c, a: unit(c, *jnp.split(a, a.shape[-1] // c.shape[-1], axis=-1))


def _d_recurrent(h: Array, d_a: Array) -> Array:
    """The gradient of U, Σ_t h_{t-1} d_a_t^T."""
    before = jnp.concatenate([jnp.zeros_like(h[:1]), h[:-1]])  # h_0 … h_{T-1}
    return _over_all(before, d_a)


def _loop(step: Callable[..., Any], start: Any, inputs: Any, reverse: bool = False) -> Any:
    """What `step` gives at each time, stacked.

    On accelerators the loop is written out: its steps are so short that looping costs as much.
    """
    written_out = jax.default_backend() != "cpu"
    return jax.lax.scan(step, start, inputs, reverse=reverse, unroll=written_out)[1]


def _over_all(x: Array, d: Array) -> Array:
    """Σ_t x_t d_t^T, as one product."""
    return product(x.reshape(-1, x.shape[-1]).T, d.reshape(-1, d.shape[-1]))
