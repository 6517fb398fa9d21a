# SPDX-License-Identifier: Apache-2.0
"""The CNN's second convolution with ReLU and pooling, in the ways it could be done, on a card.

    python benchmarks/pieces_cnn.py [--precision bf16 float32] [--turns 50] [--json FILE]
        [--small]          a check on a CPU: tiny, and with kernels interpreted

Each kernel is timed by itself with several blocks; a step (with all gradients) and a loss pass are
timed in the plain way, as models do them, and with the fastest way of each kernel. A time is that
of a turn of a loop on the card, of which "nothing" has as much as the loop takes by itself. How far
a kernel is off is told beside float64: the largest difference relative to the largest number, and
the root of the mean square relative to that of the numbers. There the plain way has the same places
winning, so that a tie decided otherwise is no error. A step and a loss pass are compared with the
plain way, where such ties count.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from agnosticfl.core.precision import in_precision
from agnosticfl.models.helpers.convolutional import max_pool, valid_convolution
from agnosticfl.models.helpers.pooled_convolution import (
    ON_CARD,
    Kernel,
    Ways,
    convolved,
    gradient_of_w,
    gradient_of_x,
    pooled_convolution,
    share,
)
from agnosticfl.models.helpers.pooled_convolution_kernels import FOUR, Blocks
from agnosticfl.models.helpers.split_factors import PRECISIONS, Precision, Split

REPEATS = 5
EXACT = 2  # lanes that are computed in float64 too
LANES = {"bf16": 5, "tf32": 10, "float32": 10}
OF_ONE = {
    "forward": [(64, 4, 2, 3), (64, 4, 3, 1), (32, 4, 2, 3)],
    "d_x": [(64, 4, 1, 9, 64), (64, 4, 1, 9, 32), (32, 4, 1, 9, 64)],
    "d_w": [(32, 4, 3, 6), (32, 4, 2, 6), (32, 4, 4, 6), (32, 4, 3, 4)],
}
BY_KERNEL = {
    "bf16": OF_ONE,
    "tf32": OF_ONE,
    "float32": {
        "forward": [(32, 4, 3, 1), (32, 4, 4, 1), (32, 4, 2, 1), (16, 4, 3, 3), (64, 4, 3, 1)],
        "d_x": [
            (16, 4, 2, 3, 64),
            (16, 4, 3, 3, 64),
            (16, 4, 2, 1, 64),
            (16, 4, 1, 9, 32),
            (32, 4, 2, 1, 32),
            (32, 4, 2, 3, 32),
        ],
        "d_w": [(32, 4, 2, 6), (32, 4, 1, 6), (32, 4, 2, 4), (32, 4, 2, 12), (16, 4, 3, 24)],
    },
}
# In float32 with other parts than models have.
BY_PARTS = {
    "bf16x6": (
        Precision(jnp.bfloat16, lax.Precision.HIGHEST, 3),
        {"forward": (32, 4, 3, 1), "d_x": (16, 4, 1, 9, 32), "d_w": (16, 4, 3, 24)},
    ),
    "tf32x3": (
        Precision(jnp.float32, lax.DotAlgorithmPreset.TF32_TF32_F32_X3),
        {"d_w": (32, 4, 2, 12)},
    ),
}


class Sizes(NamedTuple):
    """Of a step of all lanes, and of a loss pass."""

    lanes: int
    batch: int = 20
    images: int = 512
    side: int = 26
    channels: int = 32
    out: int = 64


class Way(NamedTuple):
    """A way to compute a piece, and what it is given."""

    name: str
    function: Callable[..., Any]
    given: tuple[Any, ...]
    way: Kernel | None = None  # of ours, as `Ways` has it


class Piece(NamedTuple):
    """Something a step does: the ways to do it, and what it should be (of the first lanes)."""

    ways: list[Way]
    wanted: Any = None


def plain(x: Array, w: Array, b: Array) -> Array:
    """One product over all patches."""
    return max_pool(jax.nn.relu(valid_convolution(x, w) + b))


def forward(sizes: Sizes, precision: str, small: bool) -> Piece:
    """The pooled result alone; what is given to kernels is already split."""
    x, w, b, _ = examples(sizes)
    ways = [Way("plain", jax.vmap(plain), (x, w, b))]
    for name, kernel in variants("forward", precision):
        function = jax.vmap(partial(convolved, here(kernel, small)))
        ways.append(Way(name, function, (*split(kernel, x, w), b), kernel))
    wanted = [in_float64(*(np.asarray(a[lane]) for a in (x, w, b))) for lane in range(EXACT)]
    return Piece(ways, np.stack(wanted))


def gradient(of: str, sizes: Sizes, precision: str, small: bool) -> Piece:
    """d_x or d_w by itself; what is given to kernels is already split."""
    x, w, b, d = examples(sizes)
    won = jax.jit(jax.vmap(winners))(x, w, b)
    shared = jax.jit(lambda d, won: d * share(won))(d, won)
    before = partial(unpooled, height=x.shape[2] - 2, width=x.shape[3] - 2)
    g = jax.jit(jax.vmap(before))(shared, won)

    def plainly(x: Array, w: Array, g: Array) -> Array:
        both = jax.vmap(lambda x, w, g: jax.vjp(valid_convolution, x, w)[1](g))(x, w, g)
        return both[0 if of == "d_x" else 1]

    ways = [Way("plain", plainly, (x, w, g))]
    for name, kernel in variants(of, precision):
        if of == "d_w":
            function = partial(gradient_of_w, here(kernel, small))
            given = *split(kernel, x, shared), won
        else:
            function = partial(gradient_of_x, here(kernel, small), x.shape[1:])
            given = *split(kernel, w, shared), won
        ways.append(Way(name, jax.vmap(function), given, kernel))
    exact = d_x_in_float64 if of == "d_x" else d_w_in_float64
    wanted = [exact(*(np.asarray(a[lane]) for a in (x, w, g))) for lane in range(EXACT)]
    return Piece(ways, np.stack(wanted))


def variants(name: str, precision: str) -> Iterator[tuple[str, Kernel]]:
    """Of a kernel: with all blocks that are worth trying."""
    for numbers in BY_KERNEL[precision][name]:
        yield str(numbers), Kernel(Blocks(*numbers), PRECISIONS[precision])
    if precision == "float32":
        for parts, (split_so, of_kernels) in BY_PARTS.items():
            if name in of_kernels:
                yield f"{parts} {of_kernels[name]}", Kernel(Blocks(*of_kernels[name]), split_so)


def here(kernel: Kernel, small: bool) -> Kernel:
    """A kernel as this device can run it: a CPU has no products but those of float32."""
    if not small:
        return kernel
    exactly = kernel.precision._replace(products=lax.Precision.HIGHEST)
    return kernel._replace(precision=exactly, interpret=True)


def split(kernel: Kernel, *arrays: Array) -> tuple[Split, ...]:
    return jax.jit(jax.vmap(lambda *each: tuple(map(kernel.precision.split, each))))(*arrays)


def nothing() -> Piece:
    """What a turn of a loop takes by itself, with the shortest of kernels."""
    return Piece([Way("a kernel that adds one", lambda x: x + 1, (jnp.zeros((8, 128)),))])


def step(ways: dict[str, Ways], sizes: Sizes, small: bool) -> Piece:
    """Pooled result and all gradients."""
    given = examples(sizes)

    def with_gradient(way: Any, x: Array, w: Array, b: Array, d: Array) -> Any:
        out, pullback = jax.vjp(way, x, w, b)
        return out, pullback(d)

    functions = {name: partial(with_gradient, way) for name, way in whole(ways, small).items()}
    return Piece([Way(name, jax.vmap(function), given) for name, function in functions.items()])


def loss_pass(ways: dict[str, Ways], sizes: Sizes, small: bool) -> Piece:
    """The pooled result of many images with the same w."""
    x, w, b, _ = examples(sizes._replace(lanes=1, batch=sizes.images))
    ways = {name: each for name, each in ways.items() if name in {"as models do", "the fastest"}}
    return Piece([Way(name, way, (x[0], w[0], b[0])) for name, way in whole(ways, small).items()])


def whole(ways: dict[str, Ways], small: bool) -> dict[str, Any]:
    """The plain way, and ours from result to gradients."""
    found: dict[str, Any] = {"plain": plain}
    for name, (forward, d_x, d_w) in ways.items():
        each = (here(kernel, small) for kernel in (forward, d_x, d_w))
        found[name] = pooled_convolution(Ways(*each))
    return found


@cache
@partial(jax.jit, static_argnums=0)
def examples(sizes: Sizes) -> tuple[Array, ...]:
    """x, w, b and d like those of training."""
    keys = jax.random.split(jax.random.key(0), 4)
    lanes, batch, _, side, channels, out = sizes
    x = jax.nn.relu(jax.random.normal(keys[0], (lanes, batch, side, side, channels)))
    w = 0.06 * jax.random.normal(keys[1], (lanes, 3, 3, channels, out))
    b = 0.1 * jax.random.normal(keys[2], (lanes, out))
    pooled = (lanes, batch, (side - 2) // 2, (side - 2) // 2, out)
    return x, w, b, jax.random.normal(keys[3], pooled)


def winners(x: Array, w: Array, b: Array) -> Array:
    """Which places of each block win, as `convolved` has them."""
    a = valid_convolution(x, w) + b
    largest = jax.nn.relu(max_pool(a))
    four = [a[:, p::2, q::2][:, : largest.shape[1], : largest.shape[2]] for p, q in FOUR]
    bits = sum((each == largest).astype(jnp.int8) << bit for bit, each in enumerate(four))
    return jnp.where(largest > 0, bits, 0).astype(jnp.int8)


def unpooled(d: Array, won: Array, height: int, width: int) -> Array:
    """g of this height and width from what of d each place that won has."""
    images, down, right, out = d.shape
    bits = jnp.arange(len(FOUR), dtype=won.dtype).reshape(1, 1, 2, 1, 2, 1)  # bit 2 p + q
    winner = (won[:, :, None, :, None] >> bits) & 1 == 1
    g = jnp.where(winner, d[:, :, None, :, None], 0).reshape(images, 2 * down, 2 * right, out)
    return jnp.pad(g, ((0, 0), (0, height - 2 * down), (0, width - 2 * right), (0, 0)))


def in_float64(x: Any, w: Any, b: Any) -> Any:
    height, width = x.shape[1] - 2, x.shape[2] - 2
    a = b.astype(float)
    for i in range(3):
        for j in range(3):
            a = a + x[:, i : i + height, j : j + width].astype(float) @ w[i, j].astype(float)
    n, _, _, out = a.shape
    a = a.reshape(n, height // 2, 2, width // 2, 2, out).max((2, 4))
    return np.maximum(a, 0)


def d_x_in_float64(x: Any, w: Any, g: Any) -> Any:
    d_x = np.zeros(x.shape)
    for i in range(3):
        for j in range(3):
            d_x[:, i : i + g.shape[1], j : j + g.shape[2]] += g.astype(float) @ w[i, j].T
    return d_x


def d_w_in_float64(x: Any, w: Any, g: Any) -> Any:
    d_w = np.zeros(w.shape)
    flat = g.reshape(-1, g.shape[-1]).astype(float)
    for i in range(3):
        for j in range(3):
            seen = x[:, i : i + g.shape[1], j : j + g.shape[2]].astype(float)
            d_w[i, j] = seen.reshape(-1, x.shape[-1]).T @ flat
    return d_w


def in_turns(way: Callable[..., Any], turns: int, *given: Any) -> Any:
    """The same again and again: a call from the host would take longer than a kernel."""

    def turn(_: Any, carry: Any) -> Any:
        return lax.optimization_barrier((carry[0], way(*carry[0])))

    empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(way, *given))
    return lax.fori_loop(0, turns, turn, (given, empty))[1]


def compiled(precision: str, turns: int, way: Way) -> Any:
    """The program, or what the compiler says."""
    try:
        function = in_precision(partial(in_turns, way.function, turns), precision)
        return jax.jit(function).lower(*way.given).compile()
    except Exception as error:  # that a card cannot go this way is a finding as well
        return error


def rows(pieces: dict[str, Piece], precision: str, turns: int) -> Iterator[dict[str, Any]]:
    """A row of the table for each way of each piece, all of which are compiled side by side."""
    each = [(title, piece, way) for title, piece in pieces.items() for way in piece.ways]
    with ThreadPoolExecutor() as pool:
        programs = list(pool.map(partial(compiled, precision, turns), [way for *_, way in each]))
    first: dict[str, Any] = {}
    for (title, piece, way), program in zip(each, programs, strict=True):
        row = {"precision": precision, "piece": title, "way": way.name}
        try:
            if isinstance(program, Exception):
                raise program
            result = jax.block_until_ready(program(*way.given))
            found = [measured(program, way.given) / turns for _ in range(REPEATS)]
        except Exception as error:
            yield row | {"failed": (str(error).splitlines() or [repr(error)])[0][:100]}
            continue
        arrays, wanted = jax.tree.leaves(result), [np.asarray(piece.wanted)]
        if piece.wanted is None:  # beside the plain way
            wanted = first.setdefault(title, arrays)
        pairs = zip(arrays, wanted, strict=False)  # which places won is not compared
        yield row | {"µs": found, "off": [off_by(a[: len(b)], b) for a, b in pairs]}


def measured(program: Any, given: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program(*given))
    return 1e6 * (time.perf_counter() - start)


def off_by(result: Any, wanted: Any) -> tuple[float, float]:
    """The largest difference and the root of the mean square, both relative."""
    a, b = np.asarray(result, float), np.asarray(wanted, float)
    square = np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))
    return float(np.abs(a - b).max() / np.abs(b).max()), float(square)


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    told = row.get("failed")
    if told is None:
        off = "  ".join(f"{largest:.1e} ({square:.1e})" for largest, square in row["off"])
        told = f"{statistics.median(row['µs']):9.1f} µs   off by {off}"
    return f"{row['precision']:9}{row['piece']:12}{row['way']:26}{told}"


def fastest(piece: Piece, found: list[dict[str, Any]]) -> Way | None:
    """Of our ways to compute a piece, the one that takes least."""
    taken = {row["way"]: statistics.median(row["µs"]) for row in found if "µs" in row}
    ours = [way for way in piece.ways if way.way is not None and way.name in taken]
    return min(ours, key=lambda way: taken[way.name], default=None)


def table(precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of a precision, printed as they are found."""
    sizes = Sizes(LANES[precision])
    if options.small:
        sizes = Sizes(2, batch=2, images=3, side=8, channels=16, out=16)
    found: list[dict[str, Any]] = []

    def show(pieces: dict[str, Piece]) -> None:
        for row in rows(pieces, precision, options.turns):
            print(line(row), flush=True)  # noqa: T201
            found.append(row)

    pieces = {"forward": forward(sizes, precision, options.small)}
    pieces |= {of: gradient(of, sizes, precision, options.small) for of in ("d_x", "d_w")}
    show({"nothing": nothing(), **pieces})
    best = {
        name: fastest(piece, [row for row in found if row["piece"] == name])
        for name, piece in pieces.items()
    }
    of_models = ON_CARD[precision]
    together = of_models._replace(**{name: way.way for name, way in best.items() if way})
    ways = {"as models do": of_models, "the fastest": together}
    show(
        {
            "step": step(ways, sizes, options.small),
            "loss pass": loss_pass(ways, sizes, options.small),
        }
    )
    told = ", ".join(f"{name} {way.name}" for name, way in best.items() if way)
    print(f"{precision}: the fastest are {told}", flush=True)  # noqa: T201
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", nargs="+", default=["bf16", "float32"], choices=list(LANES))
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.turns = 2
    found = [row for precision in options.precision for row in table(precision, options)]
    if options.json:
        content = {"device": jax.devices()[0].device_kind, "rows": found}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
