# SPDX-License-Identifier: Apache-2.0
"""The CNN's second convolution with ReLU and pooling, in the ways it could be done, on a card.

    python benchmarks/pieces_cnn.py [--precision bf16 float32] [--turns 50] [--json FILE]
        [--small]          a check on a CPU: tiny, and with kernels interpreted

Each kernel is timed by itself with several blocks; a step (with all gradients) and a loss pass are
timed in the plain way, and with the fastest blocks of each kernel. A time is that of a turn of a
loop on the card, of which "nothing" has as much as the loop takes by itself. How far a kernel is
off is told beside float64: the largest difference relative to the largest number, and the root of
the mean square relative to that of the numbers. There the plain way has the same places winning, so
that a tie decided otherwise is no error. A step and a loss pass are compared with the plain way,
where such ties count.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from agnosticfl.core.precision import in_precision
from agnosticfl.models.emnist_cnn import max_pool, valid_convolution
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
from agnosticfl.models.helpers.split_factors import PRECISIONS, Precision

REPEATS = 5
EXACT = 2  # lanes that are computed in float64 too
LANES = {"bf16": 5, "tf32": 10, "float32": 10}
TF32X3 = Precision(jnp.float32, lax.DotAlgorithmPreset.TF32_TF32_F32_X3)
BY_KERNEL = {
    "bf16": {
        "forward": [(64, 4, 3, 1), (64, 4, 2, 3), (64, 4, 3, 3), (64, 4, 1, 9), (32, 4, 3, 1),
                    (32, 4, 3, 3)],
        "d_x": [(64, 4, 2, 1, 32), (64, 4, 3, 1, 32), (64, 4, 2, 3, 32), (64, 4, 3, 3, 32),
                (64, 4, 2, 3, 64), (64, 4, 1, 9, 64), (32, 4, 2, 3, 32)],
        "d_w": [(64, 4, 2, 5), (64, 4, 2, 3), (64, 4, 3, 5), (32, 4, 3, 10), (32, 4, 3, 6),
                (32, 4, 3, 3)],
    },
    "float32": {
        "forward": [(64, 4, 2, 1), (64, 4, 3, 1), (64, 8, 2, 1), (64, 4, 2, 1, 16),
                    (64, 4, 3, 1, 16), (64, 4, 2, 3, 16), (32, 4, 3, 1)],
        "d_x": [(64, 4, 2, 1, 32), (64, 4, 3, 1, 16), (64, 4, 2, 3, 16), (64, 4, 3, 3, 16),
                (64, 8, 2, 1, 32), (64, 8, 2, 3, 16), (64, 8, 1, 3, 16)],
        "d_w": [(32, 4, 2, 12), (32, 4, 2, 6), (32, 4, 3, 12), (16, 4, 3, 24), (16, 4, 2, 24),
                (16, 4, 3, 12)],
    },
    "tf32": {
        "forward": [(64, 4, 3, 1), (64, 4, 2, 3), (64, 8, 2, 1), (32, 4, 3, 1), (32, 8, 3, 1)],
        "d_x": [(64, 4, 2, 1, 32), (64, 4, 2, 3, 32), (64, 8, 2, 1, 32), (32, 4, 2, 1, 32)],
        "d_w": [(32, 4, 2, 12), (32, 4, 2, 6), (64, 4, 2, 5), (32, 8, 2, 12)],
    },
}  # fmt: skip
BY_TF32X3 = {
    "forward": [(64, 8, 3, 1), (32, 8, 3, 1)],
    "d_x": [(64, 8, 2, 1, 32)],
    "d_w": [(32, 4, 2, 12)],
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
    blocks: Blocks | None = None


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

    def kernel(exactly: Precision, blocks: Blocks) -> Way:
        way = jax.vmap(partial(convolved, Kernel(blocks, exactly, small)))
        return Way("", way, (exactly.split(x), exactly.split(w), b), blocks)

    ways = [Way("plain", jax.vmap(plain), (x, w, b)), *variants("forward", precision, kernel)]
    wanted = [in_float64(*(np.asarray(a[lane]) for a in (x, w, b))) for lane in range(EXACT)]
    return Piece(ways, np.stack(wanted))


def gradient(of: str, sizes: Sizes, precision: str, small: bool) -> Piece:
    """d_x or d_w by itself; what is given to kernels is already split."""
    x, w, b, d = examples(sizes)
    won = jax.jit(jax.vmap(winners))(x, w, b)
    g = jax.jit(jax.vmap(unpooled))(won, d)
    shared = d * share(won)

    def plainly(x: Array, w: Array, g: Array) -> Array:
        both = jax.vmap(lambda x, w, g: jax.vjp(valid_convolution, x, w)[1](g))(x, w, g)
        return both[0 if of == "d_x" else 1]

    def kernel(exactly: Precision, blocks: Blocks) -> Way:
        each = Kernel(blocks, exactly, small)
        if of == "d_w":
            way = jax.vmap(partial(gradient_of_w, each))
            return Way("", way, (exactly.split(x), exactly.split(shared), won), blocks)
        way = jax.vmap(partial(gradient_of_x, each, x.shape[1:]))
        return Way("", way, (exactly.split(w), exactly.split(shared), won), blocks)

    ways = [Way("plain", plainly, (x, w, g)), *variants(of, precision, kernel)]
    exact = d_x_in_float64 if of == "d_x" else d_w_in_float64
    wanted = [exact(*(np.asarray(a[lane]) for a in (x, w, g))) for lane in range(EXACT)]
    return Piece(ways, np.stack(wanted))


def variants(
    name: str, precision: str, kernel: Callable[[Precision, Blocks], Way]
) -> Iterator[Way]:
    """Of a kernel: with all blocks that are worth trying."""
    for numbers in BY_KERNEL[precision][name]:
        yield kernel(PRECISIONS[precision], Blocks(*numbers))._replace(name=str(numbers))
    for numbers in BY_TF32X3[name] if precision == "float32" else ():
        way = kernel(TF32X3, Blocks(*numbers))
        yield way._replace(name=f"tf32x3 {numbers}", blocks=None)


def nothing() -> Piece:
    """What a turn of a loop takes by itself, with the shortest of kernels."""
    return Piece([Way("a kernel that adds one", lambda x: x + 1, (jnp.zeros((8, 128)),))])


def step(ways: Ways, sizes: Sizes, precision: str, small: bool) -> Piece:
    """Pooled result and all gradients."""
    given = examples(sizes)

    def with_gradient(way: Any, x: Array, w: Array, b: Array, d: Array) -> Any:
        out, pullback = jax.vjp(way, x, w, b)
        return out, pullback(d)

    ways_to_go = whole(ways, precision, small)
    functions = {name: jax.vmap(partial(with_gradient, way)) for name, way in ways_to_go.items()}
    return Piece([Way(name, function, given) for name, function in functions.items()])


def loss_pass(ways: Ways, sizes: Sizes, precision: str, small: bool) -> Piece:
    """The pooled result of many images with the same w."""
    x, w, b, _ = examples(sizes._replace(lanes=1, batch=sizes.images))
    ways_to_go = whole(ways, precision, small)
    return Piece([Way(name, way, (x[0], w[0], b[0])) for name, way in ways_to_go.items()])


def whole(ways: Ways, precision: str, small: bool) -> dict[str, Any]:
    """The plain way, and those of all kernels together."""
    exactly = PRECISIONS[precision]
    return {
        "plain": plain,
        "kernels, as models do": pooled_convolution(ON_CARD[precision], exactly, small),
        "kernels, the fastest": pooled_convolution(ways, exactly, small),
    }


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


def unpooled(won: Array, d: Array) -> Array:
    """The gradient before pooling."""
    n, height, width, out = d.shape
    each = [jnp.where((won >> bit) & 1 == 1, d * share(won), 0) for bit in range(4)]
    together = jnp.stack(each, -1).reshape(n, height, width, out, 2, 2)
    return together.transpose(0, 1, 4, 2, 5, 3).reshape(n, 2 * height, 2 * width, out)


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


def rows(title: str, piece: Piece, precision: str, turns: int) -> Iterator[dict[str, Any]]:
    """A row of the table for each way of a piece, all of which are compiled side by side."""
    with ThreadPoolExecutor(8) as pool:
        programs = list(pool.map(partial(compiled, precision, turns), piece.ways))
    first: Any = None
    for way, program in zip(piece.ways, programs, strict=True):
        row = {"precision": precision, "piece": title, "way": way.name, "blocks": way.blocks}
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
            first = wanted = arrays if first is None else first
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


def fastest(found: list[dict[str, Any]], name: str, otherwise: Blocks) -> Blocks:
    """The blocks with which a kernel takes least."""
    each = [row for row in found if row["piece"] == name and row["blocks"] and "µs" in row]
    best = min(each, key=lambda row: statistics.median(row["µs"]), default=None)
    return best["blocks"] if best else otherwise


def table(precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of a precision, printed as they are found."""
    sizes = Sizes(LANES[precision])
    if options.small:
        sizes = Sizes(2, batch=2, images=3, side=8, channels=16, out=16)
    found: list[dict[str, Any]] = []

    def show(title: str, piece: Piece) -> None:
        for row in rows(title, piece, precision, options.turns):
            print(line(row), flush=True)  # noqa: T201
            found.append(row)

    show("nothing", nothing())
    show("forward", forward(sizes, precision, options.small))
    for of in ("d_x", "d_w"):
        show(of, gradient(of, sizes, precision, options.small))
    ways = Ways(*(fastest(found, name, getattr(ON_CARD[precision], name)) for name in Ways._fields))
    show("step", step(ways, sizes, precision, options.small))
    show("loss pass", loss_pass(ways, sizes, precision, options.small))
    print(f"{precision}: fastest {ways}", flush=True)  # noqa: T201
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
