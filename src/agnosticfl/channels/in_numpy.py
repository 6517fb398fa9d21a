# SPDX-License-Identifier: Apache-2.0
"""What a client without JAX sends: the messages of the other files of this room, made in NumPy.

Only a client's half is here. A contribution within its bounds becomes the same bits as in JAX; one
that has to be shortened is so to within float32's rounding, since its length is added up in another
order. A turned update likewise.

    bounds.py        bounded, shared_out
    fixed_point.py   in_fixed_point, few_bits
    compression.py   rounded, largest
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from agnosticfl.channels.bounds import ROUNDING, Bounds
from agnosticfl.channels.compression import LARGEST_SIDE, block_size, rotated_part
from agnosticfl.channels.fixed_point import WIDTH, largest_word
from agnosticfl.core import threefry, tree
from agnosticfl.core.contribution import ClientSum


class Sums(NamedTuple):
    """A contribution in NumPy, its update as a list of arrays in the order of JAX's leaves."""

    weighted_delta: list[np.ndarray]
    beta: np.ndarray
    domain_loss: np.ndarray
    domain_count: np.ndarray
    left_out: np.ndarray


S = TypeVar("S", ClientSum, Sums)
State = Mapping[str, np.ndarray]  # the channel's, by name, as it travels


def sent(
    contribution: ClientSum,
    state: State,
    key: threefry.Key,
    *,
    secure: tuple[int, Bounds] | None = None,
    compress: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:
    """A client's message: its arrays, in the order in which JAX has the leaves of the same.

    Args:
      contribution: in NumPy's arrays, however they are nested.
      secure: for how many clients a secure sum has room, and their bounds; None: in the clear.
      compress: a task's [compress].
    """
    update, *others = contribution
    sums = Sums(list(tree.leaves(update)), *map(np.asarray, others))  # type: ignore[arg-type]
    if secure is not None and compress:
        return _few_bits(sums, state, threefry.fold_in(key, 1), *secure, int(compress["bits"]))
    if secure is not None:
        return _fixed_point(sums, key, *secure)
    if compress and "bits" in compress:
        return _rounded(sums, state, key, int(compress["bits"]))
    if compress:
        return _largest(sums, state, float(compress["top_k"]))
    return [*sums.weighted_delta, *_beside(sums), sums.left_out]


def usable(sums: S) -> S:
    """A contribution, or nothing at all in its place if any number of it is not finite."""
    if all(np.isfinite(leaf).all() for leaf in tree.leaves(sums)):
        return sums
    *nothing, _ = map(_zeros, sums)
    return type(sums)(*nothing, np.ones((), np.float32))  # type: ignore[arg-type]


def _zeros(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _zeros(each) for name, each in part.items()}
    return list(map(_zeros, part)) if isinstance(part, list | tuple) else np.zeros_like(part)


def bounded(bounds: Bounds, own: Sums) -> tuple[Sums, np.ndarray]:
    """One client's contribution, brought within the bounds; 1 if it was not before, else 0."""
    count = shared_out(own.domain_count, bounds.examples)
    fewer = count.sum() < own.domain_count.sum()
    size = np.maximum(own.domain_count.sum(), own.beta / np.float32(1 + ROUNDING))
    many = fewer | (size > bounds.examples)
    share = _divide(np.float32(bounds.examples), size) if many else np.float32(1)
    beta, length = share * own.beta, share * norm(own.weighted_delta)
    longest = np.float32(bounds.update) * beta
    long = length > longest
    shrink = _divide(longest, length) if long else np.float32(1)
    mean = _divide(own.domain_loss, own.domain_count)
    high = np.abs(mean) > bounds.loss
    limited = np.clip(mean, -np.float32(bounds.loss), np.float32(bounds.loss)) * count
    update = [np.asarray(share * shrink * leaf) for leaf in own.weighted_delta]
    loss = np.where(high | fewer, limited, own.domain_loss)
    sums = Sums(update, np.asarray(beta), loss, count, own.left_out)
    return sums, np.asarray(many | long | high.any(), np.int32)


def shared_out(count: np.ndarray, most: int) -> np.ndarray:
    """`count`, [p] whole numbers, or `most` in all, shared out in proportion to it."""
    room = np.minimum(_divide(np.float32(2**29), count.sum()), np.float32(1))
    parts = np.floor(room * count).astype(np.uint32)
    total = max(int(parts.sum()), 1)
    if total <= most:
        return count
    given, rest = np.zeros(len(parts), np.uint64), np.zeros(len(parts), np.uint64)
    for digit in map(int, f"{most:b}"):
        rest = 2 * rest + digit * parts
        given, rest = 2 * given + rest // total, rest % total
    order = np.argsort(-rest.astype(np.int64), kind="stable")[: most - int(given.sum())]
    given[order] += 1
    return given.astype(count.dtype)


def _fixed_point(sums: Sums, key: threefry.Key, clients: int, bounds: Bounds) -> list[np.ndarray]:
    own, clipped = bounded(bounds, usable(sums))
    most, longest = largest_word(clients), bounds.update * bounds.examples
    update: list[np.ndarray] = []
    for number, leaf in enumerate(own.weighted_delta):
        scaled = leaf.astype(np.float32) * np.float32(most / longest)
        words = np.floor(scaled + threefry.uniform(threefry.fold_in(key, number), leaf.shape))
        update.append(np.clip(words, -most, most).astype(np.int32))
    return [*update, *_words(own, clipped, bounds, most)]


def _few_bits(
    sums: Sums, state: State, key: threefry.Key, clients: int, bounds: Bounds, bits: int
) -> list[np.ndarray]:
    turned = _turned(_flat(sums.weighted_delta), int(state["0.number"]))
    own, clipped = bounded(bounds, usable(sums._replace(weighted_delta=[turned])))
    most, top = largest_word(clients), 2 ** (bits - 1) - 1
    flat = own.weighted_delta[0]
    length, longest = norm([flat]), bounds.update * bounds.examples
    deviation = 1 / math.sqrt(rotated_part(flat.size))
    unit = np.float32(WIDTH * deviation / top) * np.float32(state["1.length"])
    levels = np.floor(_divide(flat, unit) + threefry.uniform(key, flat.shape))
    inside = np.clip(levels, -top, top)
    outside = np.mean(inside != levels, dtype=np.float32)
    return [
        inside.astype(np.int32),
        *_words(own, clipped, bounds, most),
        _two_words(length, longest, most),
        _two_words(outside, 1.0, most),
        np.asarray(length > 0, np.int32),
    ]


def _rounded(sums: Sums, state: State, key: threefry.Key, bits: int) -> list[np.ndarray]:
    flat, most = _flat(sums.weighted_delta), 2**bits - 1
    block = block_size(flat.size)
    rows = np.pad(flat, (0, -flat.size % block)).reshape(-1, block)
    turned = rotate(rows * _signs(int(state["number"]), rows.shape))
    lowest = turned.min(axis=1)
    step = (turned.max(axis=1) - lowest) / np.float32(most)
    exact = _divide(turned - lowest[:, None], np.broadcast_to(step[:, None], turned.shape))
    levels = np.floor(exact + threefry.uniform(key, turned.shape))
    levels = np.clip(levels, 0, most).astype(np.uint8)
    packed = levels if bits == 8 else levels[:, ::2] | levels[:, 1::2] << 4
    return [packed, lowest, step, *_beside(sums), sums.left_out.astype(np.uint8)]


def _largest(sums: Sums, state: State, fraction: float) -> list[np.ndarray]:
    news = _flat(sums.weighted_delta) - sums.beta * state["mean"]
    number = max(round(fraction * news.size), 1)
    place = np.argsort(-np.abs(news), kind="stable")[:number]
    exact = (*_beside(sums), sums.left_out.astype(np.uint8))
    return [news[place], place.astype(np.int32), *exact]


def rotate(blocks: np.ndarray) -> np.ndarray:
    """Each row, of 2^n numbers, by the orthonormal Hadamard matrix."""
    sides, left = list[int](), blocks.shape[1]
    while left > 1:
        sides.append(min(left, LARGEST_SIDE))
        left //= sides[-1]
    turned = blocks.reshape(-1, *sides)
    for side in sides:
        matrix = np.ones((1, 1), np.float32)
        while len(matrix) < side:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        turned = np.tensordot(turned, matrix / np.float32(math.sqrt(side)), axes=(1, 0))
    return turned.reshape(blocks.shape)


def _turned(flat: np.ndarray, number: int) -> np.ndarray:
    part = rotated_part(flat.size)
    first, last = _signs(number, (2, part))
    flat = np.concatenate([rotate((flat[:part] * first)[None])[0], flat[part:]])
    rest = flat.size - part
    return np.concatenate([flat[:rest], rotate((flat[rest:] * last)[None])[0]])


def _signs(number: int, shape: tuple[int, ...]) -> np.ndarray:
    return threefry.rademacher(threefry.key(number), shape)


def _flat(update: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([leaf.ravel() for leaf in update])


def _beside(sums: Sums) -> tuple[np.ndarray, ...]:
    """What there is beside the update."""
    return sums.beta, sums.domain_loss, sums.domain_count


def _words(own: Sums, clipped: np.ndarray, bounds: Bounds, most: int) -> list[np.ndarray]:
    return [
        _two_words(own.beta, bounds.examples, most),
        _two_words(own.domain_loss, bounds.loss * bounds.examples, most),
        own.domain_count.astype(np.int32),
        own.left_out.astype(np.int32),
        clipped,
    ]


def _two_words(values: Any, largest: float, most: int) -> np.ndarray:
    scaled = np.clip(np.float32(values) * np.float32(most / largest), -most, most)
    high = np.floor(scaled)
    return np.stack([high, np.floor((scaled - high) * most)]).astype(np.int32)


def _divide(numerator: Any, denominator: Any) -> Any:
    usable = denominator > tree.SMALLEST
    return np.where(usable, numerator / np.where(usable, denominator, 1), 0).astype(np.float32)


def norm(parts: Sequence[np.ndarray]) -> np.float32:
    """Euclidean norm of all numbers together; no square of them overflows."""
    largest = np.float32(max((np.abs(part).max(initial=0) for part in parts), default=0))
    squares = [np.square(_divide(part, largest)).sum(dtype=np.float32) for part in parts]
    return largest * np.sqrt(np.float32(sum(squares)))
