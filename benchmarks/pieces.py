# SPDX-License-Identifier: Apache-2.0
"""Pieces of a step of the LSTM, each by itself and in the ways it could be done, on a card.

    python benchmarks/pieces.py [--piece "time loops"] [--precision bf16 tf32] [--lanes 25]
        [--batch 16] [--repeats 5] [--json FILE]
        [--small]          a check on a CPU: tiny, and with kernels interpreted

The first way of a piece is the plain one, which models go elsewhere than on a card. The table says
how long each takes, and how far it is off the plain way in float32.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core import compiling
from agnosticfl.core.metrics.sentences import cross_entropy
from agnosticfl.core.precision import HALVES, half, in_precision, product, rounded_factor
from agnosticfl.models.helpers import recurrent_on_card
from agnosticfl.models.helpers.fused_loss import NO_WORD, ON_CARD, Blocks, fused_loss
from agnosticfl.models.helpers.recurrent import over_time
from agnosticfl.models.word_lstm import lstm_unit

CALLS = 20  # sent off at once, so that the host is not what is timed
LOSS_PASS = 1024  # examples in a batch of it
# Blocks that models do not have, for each kernel of the losses.
OTHERS = {
    "forward": [
        Blocks(64, 128, 4, 3, 2),
        Blocks(64, 128, 4, 3, 4),
        Blocks(64, 128, 4, 2, 3),
        Blocks(64, 64, 4, 3, 4),
        Blocks(64, 64, 4, 4, 6),
        Blocks(128, 128, 8, 3, 2),
    ],
    "d_x": [
        Blocks(64, 128, 4, 2, 2),
        Blocks(64, 128, 4, 2, 3),
        Blocks(64, 64, 4, 3, 3),
        Blocks(64, 64, 4, 3, 4),
        Blocks(64, 64, 4, 3, 6),
    ],
    "d_w": [
        Blocks(64, 128, 4, 2),
        Blocks(64, 128, 8, 2),
        Blocks(64, 64, 4, 2),
        Blocks(32, 128, 4, 2),
        Blocks(32, 64, 4, 2),
        Blocks(32, 64, 4, 3),
        Blocks(32, 128, 4, 3),
        Blocks(64, 128, 8, 3),
    ],
}


class Sizes(NamedTuple):
    """Of a step of all lanes."""

    lanes: int
    batch: int
    time: int = 20
    words: int = 10_004
    embedding: int = 96
    hidden: int = 670

    @property
    def tokens(self) -> int:
        return self.batch * self.time


class Piece(NamedTuple):
    """Something a step does, and the ways to do it; all take the same arguments."""

    given: tuple[Array, ...]
    ways: dict[str, Callable[..., Any]]


def loss_pass(sizes: Sizes, kind: Any, small: bool) -> Piece:
    """The losses of a batch from the narrow layer's output, all with one model; no gradient."""
    examples = sizes.batch if small else LOSS_PASS
    x, w, b, y, _ = _of_loss(sizes._replace(lanes=1, batch=examples))
    return Piece((x, w, b, y), {"logits in memory": plain_loss, **fused(kind, small, ["forward"])})


def loss_and_gradient(sizes: Sizes, kind: Any, small: bool) -> Piece:
    """The losses of a step of all lanes with the gradients of x, W and b."""
    ways: dict[str, Any] = {
        "logits in memory": plain_loss,
        "vocabulary a multiple of 128": wide_loss,
        **fused(kind, small, OTHERS),
    }
    return Piece(_of_loss(sizes), {name: partial(with_gradient, way) for name, way in ways.items()})


def fused(kind: Any, small: bool, kernels: Iterable[str]) -> dict[str, Any]:
    """Losses without logits in memory, with models' blocks and with others of these kernels."""
    ways = {"fused, as models do": ON_CARD}
    for kernel in kernels:
        for blocks in OTHERS[kernel]:
            ways[f"{kernel} {tuple(blocks)}"] = ON_CARD._replace(**{kernel: blocks})
    return {name: fused_loss(each, kind, small) for name, each in ways.items()}


def time_loops(sizes: Sizes, kind: Any, small: bool) -> Piece:
    """The LSTM's layer over all time steps, with its gradients."""
    del kind
    keys = jax.random.split(jax.random.key(1), 3)
    gates = 4 * sizes.hidden
    u = 0.03 * jax.random.normal(keys[0], (sizes.lanes, sizes.hidden, gates))
    shape = (sizes.lanes, sizes.time, sizes.batch)
    z = jax.random.normal(keys[1], (*shape, gates))
    d = 1e-6 * jax.random.normal(keys[2], (*shape, sizes.hidden))  # as small as a client's are
    ways = {"a product at each time": at_each_time, "U on the chip": partial(on_the_chip, small)}
    return Piece((u, z, d), ways)


def products_back(sizes: Sizes, kind: Any, small: bool) -> Piece:
    """d_a U^T at one time step."""
    del small
    keys = jax.random.split(jax.random.key(2), 2)
    gates = 4 * sizes.hidden
    u = jax.random.normal(keys[0], (sizes.lanes, sizes.hidden, gates), kind)
    d = jax.random.normal(keys[1], (sizes.lanes, sizes.batch, gates))
    # The copy is made once per step and used 20 times: it is given, not timed.
    turned = u.swapaxes(1, 2)
    ways = {
        "U as it is": lambda d, u, _: jax.vmap(lambda d, u: product(half(d), u.T))(d, u),
        "a turned copy of U": lambda d, _, turned: jax.vmap(product)(half(d), turned),
    }
    return Piece((d, u, turned), ways)


PIECES = {
    "loss pass": loss_pass,
    "loss and gradient": loss_and_gradient,
    "time loops": time_loops,
    "products back": products_back,
}


def plain_loss(x: Array, w: Array, b: Array, y: Array) -> Array:
    """All logits, then the cross-entropy."""
    losses = jax.vmap(lambda x, w, b, y: cross_entropy(product(x, w) + b, y))(
        x, w, b, jnp.maximum(y, 0)
    )
    return jnp.where(y == NO_WORD, 0, losses)


def wide_loss(x: Array, w: Array, b: Array, y: Array) -> Array:
    """With words that cannot come, so that the compiler need not widen each product's factors."""
    more = -w.shape[2] % 128
    wide = jnp.pad(rounded_factor(w), [(0, 0), (0, 0), (0, more)])
    return plain_loss(x, wide, jnp.pad(b, [(0, 0), (0, more)], constant_values=-1e30), y)


def with_gradient(loss: Any, x: Array, w: Array, b: Array, y: Array, d: Array) -> Any:
    """The losses and the gradients of x, W and b."""
    losses, pullback = jax.vjp(lambda x, w, b: loss(x, w, b, y), x, w, b)
    return losses, pullback(d)


def at_each_time(u: Array, z: Array, d: Array) -> Any:
    """As models do it where no kernel of our own fits: h, and the gradients of U and z."""
    with patch.object(compiling, "on_hopper", lambda: False):
        return all_lanes(u, z, d)


def on_the_chip(small: bool, u: Array, z: Array, d: Array) -> Any:
    """As models do it on a card."""
    if not small:
        return all_lanes(u, z, d)
    parts = {"forward": recurrent_on_card.forward, "backward": recurrent_on_card.backward}
    interpreted = {name: partial(part, interpret=True) for name, part in parts.items()}
    always = {name: lambda *_: True for name in ("on_nvidia", "on_hopper")}
    with (
        patch.multiple(recurrent_on_card, fits=lambda *_: True, **interpreted),
        patch.multiple(compiling, **always),
    ):
        return all_lanes(u, z, d)


def all_lanes(u: Array, z: Array, d: Array) -> Any:
    """The layer of all lanes, and the gradients of U and z."""
    h, pullback = jax.vjp(jax.vmap(lambda u, z: over_time(lstm_unit, u, None, z)), u, z)
    return h, pullback(d)


def _of_loss(sizes: Sizes) -> tuple[Array, ...]:
    keys = jax.random.split(jax.random.key(0), 6)
    shape = (sizes.lanes, sizes.tokens)
    # Sentences end after a quarter of the time or later; the rest is padding.
    lengths = jax.random.randint(
        keys[5], (sizes.lanes, sizes.batch, 1), sizes.time // 4, sizes.time
    )
    real = (jnp.arange(sizes.time) <= lengths).reshape(shape)
    y = jax.random.randint(keys[3], shape, 0, sizes.words)
    return (
        jax.random.normal(keys[0], (*shape, sizes.embedding)),
        0.1 * jax.random.normal(keys[1], (sizes.lanes, sizes.embedding, sizes.words)),
        jax.random.normal(keys[2], (sizes.lanes, sizes.words)),
        jnp.where(real, y, NO_WORD),
        jax.random.uniform(keys[4], shape) / sizes.tokens,
    )


def measured(
    way: Callable[..., Any], given: tuple[Array, ...], precision: str, repeats: int
) -> tuple[Any, list[float]]:
    """What a way results in, and the microseconds of a call (a mean of many, `repeats` times)."""
    function = jax.jit(in_precision(way, precision))
    result = jax.block_until_ready(function(*given))
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(CALLS):
            result = function(*given)
        jax.block_until_ready(result)
        found.append(1e6 * (time.perf_counter() - start) / CALLS)
    return result, found


def off_by(result: Any, exact: Any) -> float:
    """The root of the mean square of a difference, relative to that of the array it is worst in."""

    def size(array: Array) -> float:
        return float(jnp.sqrt(jnp.mean(array.astype(jnp.float32) ** 2)))

    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(exact), strict=True)
    return max(size(a - b) / size(b) for a, b in pairs)


def rows(
    titles: Sequence[str], precision: str, sizes: Sizes, small: bool, repeats: int
) -> Iterator[dict[str, Any]]:
    """A row of the table for each way of each piece; the first way of a piece must succeed."""
    for title in titles:
        piece = PIECES[title](sizes, HALVES[precision], small)
        first = next(iter(piece.ways.values()))
        exact = jax.jit(in_precision(first, "float32"))(*piece.given)
        for name, way in piece.ways.items():
            row: dict[str, Any] = {"piece": title, "precision": precision, "way": name}
            try:
                result, found = measured(way, piece.given, precision, repeats)
            except Exception as error:  # that a card cannot go this way is a finding as well
                if way is first:
                    raise
                yield {**row, "failed": str(error).splitlines()[0]}
                continue
            yield {**row, "µs": found, "off by": off_by(result, exact)}


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    told = row.get("failed") or (
        f"{statistics.median(row['µs']):9.1f} µs   off by {row['off by']:.1e}"
    )
    return f"{row['piece']:20}{row['precision']:6}{row['way']:32}{told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--piece", nargs="+", default=list(PIECES), choices=list(PIECES))
    parser.add_argument("--precision", nargs="+", default=list(HALVES), choices=list(HALVES))
    parser.add_argument("--lanes", type=int, default=25)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    sizes = Sizes(options.lanes, options.batch)
    if options.small:
        sizes = Sizes(lanes=10, batch=32, time=4, words=300, hidden=16)
    found = []
    for precision in options.precision:
        for row in rows(options.piece, precision, sizes, options.small, options.repeats):
            print(line(row), flush=True)  # noqa: T201
            found.append(row)
    if options.json:
        device = jax.devices()[0].device_kind
        content = {"device": device, "sizes": sizes._asdict(), "rows": found}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
