# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL: noise of one round that partly takes back that of the rounds before it.

The server releases x̂ = C⁻¹ (C x + noise), x being the rounds' sums and C a lower-triangular
Toeplitz matrix: what was added early is subtracted later, so that the sum over rounds, which is
what moves a model, has far less noise. Nothing is assumed of who is drawn, only how many rounds lie
between two of one client at least (Choquette-Choo et al. 2023; McMahan et al. 2024). The matrices
are those of `jax-privacy` (extra `ftrl`). The server must be trusted with the sums: it remembers
them, and its noise, from round to round, in memory only.
"""

import collections
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from agnosticfl.channels.dp.noise import Release
from agnosticfl.core.lazy_jax import jax
from agnosticfl.errors import require
from agnosticfl.privacy.noise_source import NoiseSource

KINDS = ("banded", "buffered")
MOST_BANDS = 32  # as many sums are remembered


class Memory(Protocol):
    """What past values add to the present one."""

    def read(self) -> np.ndarray | float: ...
    def push(self, value: np.ndarray) -> None: ...


class Strategy(NamedTuple):
    """C, and what it does to one client's part."""

    first: float  # C_00
    memory: Callable[[], Memory]  # Σ_{j ≥ 1} C_j0 x_{t−j}, one round after another
    sensitivity: float  # the largest norm of C x for one client with ‖x_t‖ ≤ 1 where it takes part
    spread: float  # the largest deviation of a round's noise, if that of the draws is 1
    participations: int  # of one client, at most
    separation: int  # rounds from one to the next, at least
    rounds: int
    rows: int  # of C x, at most, that one round's sum is in
    words: str


@functools.lru_cache(maxsize=8)
def find_strategy(kind: str, rounds: int, separation: int, counted_each: bool = False) -> Strategy:
    """The matrix with the least mean error of all sums over rounds 1 … t, for this many rounds.

    Args:
      counted_each: whether clients count each of their rounds by itself: C is then so small that no
        number of rounds costs more than as many times a sum without C would.
    """
    what = f"correlated noise ({kind})"
    toeplitz: Any = require("jax_privacy.matrix_factorization.toeplitz", what, "ftrl")
    often = -(-rounds // separation)
    # The library expects JAX as it is by default, but in double precision.
    usual = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.enable_x64(True), usual[0], usual[1]:
        if kind == "banded":
            bands = min(separation, rounds, MOST_BANDS)
            found = toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands)
            column = np.maximum.accumulate(np.asarray(found, np.float64)[::-1])[::-1]
            column, rows = column / np.linalg.norm(column), bands
            words = f"{bands} bands"
            remember: Callable[[float], Memory] = functools.partial(_History, column[1:])
        else:
            module = "jax_privacy.matrix_factorization.buffered_toeplitz"
            found = require(module, what, "ftrl").optimize(
                n=rounds, min_sep=separation, max_participations=often, error="mean", max_buffers=4
            )
            decay, scale = (
                np.asarray(x, np.float64) for x in (found.buf_decay, found.output_scale)
            )
            column = np.concatenate(
                [[1.0], (scale * decay ** np.arange(rounds - 1)[:, None]).sum(1)]
            )
            rows, words = rounds, f"{len(decay)} buffers"
            remember = functools.partial(_Buffers, decay, scale)
        factor = 1 / math.sqrt(most_of_each(column, separation)) if counted_each else 1.0
        column = factor * column
        squared = toeplitz.minsep_sensitivity_squared(column, separation, None, rounds)
        inverse = np.asarray(toeplitz.inverse_coef(column, rounds), np.float64)
    return Strategy(
        float(column[0]),
        functools.partial(remember, factor),
        math.sqrt(float(squared)),
        float(np.linalg.norm(inverse)),
        often,
        separation,
        rounds,
        rows,
        f"{kind}, {words}",
    )


def most_of_each(column: np.ndarray, separation: int) -> float:
    """What k rounds of a client add to the squared norm of C x, over k; the most for any k.

    The first column of C falls and is nowhere negative, so that rounds add most if the first is
    round 1 and the others follow as soon as they may. If columns do not overlap, it is the squared
    norm of the first; otherwise a round costs the more, the more there were before it.
    """
    total, most = np.zeros_like(column), 0.0
    for k, start in enumerate(range(0, len(column), separation), 1):
        total[start:] += column[: len(column) - start]
        most = max(most, float(total @ total) / k)
    return most


def correlated(source: NoiseSource, strategy: Strategy) -> Release:
    """Sums with noise that later rounds partly take back.

    C x is rounded to whole numbers before it is noised, so the noise is a discrete Gaussian on
    whole numbers; the rest, C⁻¹ of that, is computed from what is noised already.
    """
    sums, outputs = strategy.memory(), strategy.memory()

    def release(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        own = np.asarray(total, np.float64)
        mixed = np.rint(strategy.first * own + sums.read())
        noised = mixed + source(int(sigma), 1, own.size)
        output = (noised - outputs.read()) / strategy.first
        sums.push(own)
        outputs.push(output)
        return output.astype(np.float32)

    return release


def sensitivity_of(strategy: Strategy, size: int, units: int) -> float:
    """The norm of one client's part of C x, in units of a vector of norm 1, after all rounding.

    A vector of `size` numbers is rounded where it is made, and each row of C x once more, which
    can make two neighbours differ by one unit more in every number.
    """
    of_vectors = strategy.sensitivity * (1 + math.sqrt(size) / (2 * units))
    return of_vectors + math.sqrt(strategy.rounds * size) / (2 * units)


def rounding_of_one(strategy: Strategy, size: int, units: int) -> float:
    """By how much rounding makes one client's part of C x in a single round longer than 1.

    For clients who count each of their rounds, where C's columns have norm 1 at most.
    """
    return (1 + math.sqrt(strategy.rows)) * math.sqrt(size) / (2 * units)


class _History:
    """The last values themselves."""

    def __init__(self, column: np.ndarray, factor: float):
        self._column = factor * column
        self._last: collections.deque[np.ndarray] = collections.deque(maxlen=len(column))

    def read(self) -> np.ndarray | float:
        return sum((c * x for c, x in zip(self._column, self._last, strict=False)), start=0.0)

    def push(self, value: np.ndarray) -> None:
        self._last.appendleft(value)


class _Buffers:
    """Sums of all values, each of which fades at a rate of its own."""

    def __init__(self, decay: np.ndarray, scale: np.ndarray, factor: float):
        self._decay, self._scale = decay, factor * scale
        self._held: list[np.ndarray | float] = [0.0] * len(decay)

    def read(self) -> np.ndarray | float:
        return sum((s * x for s, x in zip(self._scale, self._held, strict=True)), start=0.0)

    def push(self, value: np.ndarray) -> None:
        self._held = [d * x + value for d, x in zip(self._decay, self._held, strict=True)]
