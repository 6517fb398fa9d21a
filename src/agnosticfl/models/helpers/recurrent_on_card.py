# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer whose weights stay on an NVIDIA card's chip over all time steps.

    a_t = z_t + U h_{t-1}
    c_t, h_t = unit(c_{t-1}, a_t)

A product at one time step reads all of U, and 25 clients have 90 MB of it in bf16, so that these
products wait for the memory. Here a client has a company of groups of threads. Each group has UNITS
of the hidden units, and keeps their part of U in its multiprocessor's shared memory: it reads all
of h_{t-1}, computes its part of h_t, writes that down and waits for the others. Backwards it is the
same with d_a. `benchmarks/pieces.py` times this beside the plain way.

Factors have 16 bits each: bf16, or float16, whose mantissa is that of tf32, but whose numbers end
at 65504 and lose bits below 6 · 10^-5. So d_h of a client is scaled.

Groups that wait for each other must all be running. Each draws a number as it begins, and numbers
that follow each other make a company. So of the groups that are running only one company can be
incomplete, and all others will end and make room for the rest of it. A company has at most 21
groups, a card 132 multiprocessors: even six such kernels at a time cannot block each other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

UNITS = 32  # of the hidden layer, that a group has
LARGEST = 672  # hidden units whose part of U fits: 4 gates × 32 × 672 numbers of 16 bits
SMALLEST = 641  # the paper's 670 were compared on a card, and what has as many groups is the same
ROWS = 16  # of a batch, which is filled up to so many
# How much of U and of what it is multiplied with makes one product, and the threads that do it, by
# trial. (With 512 the compiler's program for `_forward` computes something else.)
PART = 256
FORWARD_WARPS, BACKWARD_WARPS = 8, 4
AHEAD = 2  # parts under way from the memory
LINE = 32  # numbers between two counters, so that they do not share a line of the cache

Unit = Callable[..., tuple[Array, Array]]  # c_{t-1} and each gate's a_t -> c_t, h_t
Kept = tuple[Array, Array]  # a_t and c_{t-1} of all times, as `backward` reads them


class Size(NamedTuple):
    """Of the layer of one client."""

    time: int
    rows: int  # of a batch
    gates: int
    hidden: int

    @property
    def groups(self) -> int:
        """Of threads, in a company."""
        return pl.cdiv(self.hidden, UNITS)

    @property
    def padded(self) -> int:
        """Hidden units with those that only fill up the last group."""
        return self.groups * UNITS


def fits(hidden: int, wide: int, rows: int) -> bool:
    """Whether the kernels are known to do it, with U [hidden, wide] and so many rows."""
    return wide == 4 * hidden and SMALLEST <= hidden <= LARGEST and rows <= ROWS


def packed(u: Array, factor: Any) -> Array:
    """U [hidden, gates × hidden] as groups read it: [padded, groups, gates × UNITS] of a type."""
    size = Size(0, 0, u.shape[1] // u.shape[0], u.shape[0])
    more = (0, size.padded - size.hidden)
    u = u.astype(factor).reshape(size.hidden, size.gates, size.hidden)
    u = jnp.pad(u, (more, (0, 0), more)).reshape(size.padded, size.gates, size.groups, UNITS)
    # The barrier makes this one array for both directions.
    return lax.optimization_barrier(
        u.swapaxes(1, 2).reshape(size.padded, size.groups, size.gates * UNITS)
    )


def forward(
    unit: Unit, hidden: int, u: Array, z: Array, interpret: bool = False
) -> tuple[Array, Kept]:
    """h_1 … h_T [T, n, hidden], as factors of products, and what `backward` needs.

    Args:
      u: `packed`.
      z: [T, n, gates × hidden].
    """
    wanted = z.shape[1]
    z = _filled_up(z)
    size = Size(z.shape[0], z.shape[1], z.shape[2] // hidden, hidden)
    call = _for_all_lanes(partial(_forward_of_lanes, unit, size, interpret))
    h, *kept = call(u, z.reshape(size.time, size.rows, size.gates, hidden))
    return h[:, :wanted, :hidden], tuple(kept)


def backward(unit: Unit, u: Array, kept: Kept, d_h: Array, interpret: bool = False) -> Array:
    """The gradients of z [T, n, gates × hidden], as factors of products, from those of h."""
    time, wanted, hidden = d_h.shape
    d_h = _filled_up(d_h)
    size = Size(time, d_h.shape[1], u.shape[2] // UNITS, hidden)
    call = _for_all_lanes(partial(_backward_of_lanes, unit, size, interpret))
    d_z = call(u, *kept, d_h)
    return d_z.reshape(time, size.rows, -1)[:, :wanted]


def _filled_up(array: Array) -> Array:
    """With rows of zeros: [T, n, …] -> [T, ROWS, …]."""
    return jnp.pad(array, ((0, 0), (0, -array.shape[1] % ROWS), (0, 0)))


def _for_all_lanes(function: Any) -> Any:
    """A function of all lanes' arrays [L, …] as one of a single lane's, for `jax.vmap`.

    It stays one call. Were it left to Pallas, the groups of each lane would draw their own numbers.
    """

    @custom_vmap
    def of_one(*given: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], function(*(array[None] for array in given)))

    @of_one.def_vmap
    def of_all(lanes: int, batched: Any, *given: Array) -> Any:
        every = [
            array if has_lanes else jnp.broadcast_to(array, (lanes, *array.shape))
            for array, has_lanes in zip(given, batched, strict=True)
        ]
        results = function(*every)
        return results, jax.tree.map(lambda _: True, results)

    return of_one


def _forward_of_lanes(unit: Unit, size: Size, interpret: bool, u: Array, z: Array) -> list[Array]:
    lead = (len(u), size.time)
    shapes = [
        jax.ShapeDtypeStruct((*lead, size.rows, size.padded), u.dtype),
        jax.ShapeDtypeStruct((*lead, size.groups, size.gates * UNITS, size.rows), z.dtype),
        jax.ShapeDtypeStruct((*lead, size.groups, UNITS, size.rows), z.dtype),
    ]
    return _call(_forward, unit, size, FORWARD_WARPS, interpret, shapes, u, z)


def _backward_of_lanes(
    unit: Unit, size: Size, interpret: bool, u: Array, a: Array, c: Array, d_h: Array
) -> Array:
    lead, half = (len(u), size.time, size.rows), size.gates // 2
    # What comes back to a unit is a product with a row of U. Its halves are rows of their own here,
    # so that a group has the 64 rows that a card's fastest products need.
    halves = u.reshape(len(u), 2 * size.padded, half * size.padded)
    shapes = [
        jax.ShapeDtypeStruct((*lead, size.gates, size.hidden), u.dtype),
        jax.ShapeDtypeStruct((*lead, 2, half * size.padded), u.dtype),
    ]
    return _call(_backward, unit, size, BACKWARD_WARPS, interpret, shapes, halves, a, c, d_h)[0]


def _call(
    kernel: Any, unit: Unit, size: Size, warps: int, interpret: bool, shapes: Any, *given: Array
) -> list[Array]:
    """The results of a kernel that gets counters, all 0, as its last argument."""
    lanes = len(given[0])
    counters = jnp.zeros((1 + lanes, LINE), jnp.int32)
    shapes = [*shapes, jax.ShapeDtypeStruct(counters.shape, counters.dtype)]
    return pl.pallas_call(
        partial(kernel, unit=unit, size=size),
        grid=(lanes * size.groups,),
        out_shape=shapes,
        input_output_aliases={len(given): len(shapes) - 1},
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
    )(*given, counters)[:-1]


class Group(NamedTuple):
    """The threads that run a kernel: one of a company."""

    lane: Array
    number: Array  # in its company
    company: Any  # [L + 1, LINE], in whose row 1 + lane those are counted who have arrived
    size: Size

    @property
    def zero(self) -> Array:
        """0 as an index that is no constant, since Pallas's interpreter takes no constants."""
        return 0 * self.lane

    @property
    def units(self) -> Any:
        """Its part of the hidden units."""
        return pl.ds(self.number * UNITS, UNITS)

    def real(self, shape: tuple[int, ...]) -> Array:
        """Which of its units are more than filling: [UNITS], as the last axis of `shape`."""
        real = self.number * UNITS + jnp.arange(UNITS) < self.size.hidden
        return jnp.broadcast_to(real.reshape(*(1 for _ in shape[1:]), -1), shape)

    def arrive(self) -> None:
        """Says that all that the group has written can be read."""
        if self.size.groups > 1:
            triton.debug_barrier()
            triton.atomic_add(self.company, (1 + self.lane, self.zero), self.zero + 1)

    def wait(self, turns: Array) -> Array:
        """Waits until all of the company have arrived so many times; then gives 0.

        What `received` reads at an address made with this 0 is read afterwards.
        """
        if self.size.groups == 1:
            return self.zero
        number = turns * self.size.groups
        seen = lax.while_loop(
            lambda seen: seen < number,
            lambda _: received(self.company.at[1 + self.lane, self.zero]),
            self.zero,
        )
        return jnp.minimum(seen, number) - number


def received(ref: Any) -> Array:
    """What others wrote, from the memory that all share: a multiprocessor's own cache may be old.

    To the letter a fence is due between waiting and this, which takes half a microsecond. But a
    card sends off no read before the one that it waits for has come back, and what was written
    before a group arrived is then in the memory that this reads.
    """
    return triton.load(ref, volatile=True)


def _group(counters: Any, size: Size) -> Group:
    zero = 0 * pl.program_id(0)
    drawn = triton.atomic_add(counters, (zero, zero), zero + 1)
    return Group(drawn // size.groups, drawn % size.groups, counters, size)


def _forward(*refs: Any, unit: Unit, size: Size) -> None:
    u, z, _, h, a, c, counters = refs
    own = _group(counters, size)
    lane, parts = own.lane, _parts(size.padded)

    def inputs(t: Array) -> Array:
        shape = (size.rows, size.gates, UNITS)
        return triton.load(z.at[lane, t, :, :, own.units], mask=own.real(shape), other=0.0)

    def cell(t: Array, before: Array, sums: Array) -> tuple[Array, ...]:
        now, m = unit(before, *_gates(sums, size))
        triton.store(h.at[lane, t, :, own.units], m.T.astype(h.dtype))
        own.arrive()
        return now, before, sums

    def keep(t: Array, before: Array, sums: Array) -> None:
        triton.store(a.at[lane, t, own.number], sums)
        triton.store(c.at[lane, t, own.number], before)

    def step(t: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        z_t, before, *of_last = state
        keep(t - 1, *of_last)  # nobody waits for it, and this group has nothing better to do
        sums = _turned(z_t)
        last = t - 1 + own.wait(t)
        factors = [received(h.at[lane, last, :, part]) for part in parts]
        coming = inputs(jnp.minimum(t + 1, size.time - 1))  # while products are computed
        for weights, factor in zip(tiles, factors, strict=True):
            sums += triton.dot(weights.T, factor.T)
        return coming, *cell(t, before, sums)

    nothing = jnp.zeros((UNITS, size.rows), a.dtype)
    first = cell(own.zero, nothing, _turned(inputs(own.zero)))
    tiles = [triton.load(u.at[lane, part, own.number]) for part in parts]
    start = (inputs(own.zero + min(1, size.time - 1)), *first)
    _, _, *of_last = lax.fori_loop(1, size.time, step, start)
    keep(own.zero + size.time - 1, *of_last)


def _backward(*refs: Any, unit: Unit, size: Size) -> None:
    u, a, c, d_h, _, d_z, sent, counters = refs
    own = _group(counters, size)
    lane, half = own.lane, size.gates // 2
    parts = _parts(half * size.padded)

    def given(t: Array) -> tuple[Array, ...]:
        mask = own.real((size.rows, UNITS))
        d = triton.load(d_h.at[lane, t, :, own.units], mask=mask, other=0.0)
        return d, triton.load(c.at[lane, t, own.number]), triton.load(a.at[lane, t, own.number])

    def cell(t: Array, d: Array, d_c: Array, before: Array, sums: Array) -> tuple[Array, ...]:
        _, pullback = jax.vjp(unit, before, *_gates(sums, size))
        d_c, *d_gates = pullback((d_c, d))
        # The gates of half a group stand side by side, so that none lies on both halves of a row.
        d_a = [_side_by_side(d_gates[start : start + half]) for start in (0, half)]
        for i, d in enumerate(d_a):
            place = 2 * own.number + i
            columns = pl.ds(place % size.groups * half * UNITS, half * UNITS)
            both = d.astype(sent.dtype).reshape(size.rows, half * UNITS)
            triton.store(sent.at[lane, t, :, place // size.groups, columns], both)
        own.arrive()
        return d_c, *d_a

    def keep(t: Array, *d_a: Array) -> None:
        for i, d in enumerate(d_a):
            gates = pl.ds(i * half + own.zero, half)
            mask = own.real(d.shape)
            triton.store(d_z.at[lane, t, :, gates, own.units], d.astype(d_z.dtype), mask=mask)

    def step(s: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        d, before, kept, d_c, *d_a = state
        t = size.time - 1 - s
        keep(t + 1, *d_a)
        later = t + 1 + own.wait(s)

        def factor(part: Any) -> Array:
            rows = received(sent.at[lane, later, :, :, part])
            return rows.reshape(2 * size.rows, part.size).T

        factors = [factor(part) for part in parts[:AHEAD]]
        coming = given(jnp.maximum(t - 1, 0))
        products = jnp.zeros((2 * UNITS, 2 * size.rows), a.dtype)
        for i, weights in enumerate(tiles):
            factors.extend(factor(part) for part in parts[i + AHEAD : i + AHEAD + 1])
            products += triton.dot(weights, factors[i])
        return *coming, *cell(t, d.T + _of_like_halves(products, size), d_c, before, kept)

    last = size.time - 1 + own.zero
    d, before, kept = given(last)
    first = cell(last, d.T, jnp.zeros((UNITS, size.rows), a.dtype), before, kept)
    rows = pl.ds(2 * UNITS * own.number, 2 * UNITS)
    tiles = [triton.load(u.at[lane, rows, part]) for part in parts]
    start = (*given(jnp.maximum(last - 1, 0)), *first)
    _, _, _, _, *d_a = lax.fori_loop(1, size.time, step, start)
    keep(own.zero, *d_a)


def _parts(size: int) -> list[Any]:
    """A size as powers of two, none above PART: 672 is 256, 256, 128 and 32."""
    found, start = [], 0
    while start < size:
        part = min(1 << ((size - start).bit_length() - 1), PART)
        found.append(pl.ds(start, part))
        start += part
    return found


def _turned(z: Array) -> Array:
    """[n, gates, UNITS] -> [gates × UNITS, n]."""
    return z.transpose(1, 2, 0).reshape(-1, z.shape[0])


def _gates(sums: Array, size: Size) -> Any:
    """[gates × UNITS, n] -> [UNITS, n] for each gate."""
    return lax.split(sums, [UNITS] * size.gates, 0)


def _side_by_side(gates: Any) -> Array:
    """[UNITS, n] for each of two gates -> [n, 2, UNITS]."""
    return jnp.stack(gates, -1).transpose(1, 2, 0)


def _of_like_halves(products: Array, size: Size) -> Array:
    """Of (unit, half) by (row, half) those with the same half, added up: [UNITS, n]."""
    products = products.reshape(UNITS, 2, size.rows, 2)
    by_column = [half.reshape(products.shape[:3]) for half in lax.split(products, [1, 1], 3)]
    first, second = (lax.split(half, [1, 1], 1)[i] for i, half in enumerate(by_column))
    return (first + second).reshape(UNITS, size.rows)
