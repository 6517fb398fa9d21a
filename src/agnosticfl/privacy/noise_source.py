# SPDX-License-Identifier: Apache-2.0
"""Noise for one sum after another, drawn ahead while a round is computed."""

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from agnosticfl.privacy.discrete import discrete_gaussian
from agnosticfl.privacy.entropy import Secrets

# (σ of one share, number of shares, size) -> [size] int32, their sum modulo 2^32
NoiseSource: TypeAlias = Callable[[int, int, int], np.ndarray]

PART = 1 << 16  # numbers that one thread draws; smaller noise is not worth a thread


def noise_source(secrets: Secrets) -> NoiseSource:
    """Discrete Gaussian noise from secret bits; what was given is never given again.

    Large noise is drawn by several threads (NumPy lets them work side by side), and the next one of
    the same size while the program does other things. The bits do not depend on the threads.
    """
    workers = concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    ahead: dict[tuple[int, int, int], list[concurrent.futures.Future[np.ndarray]]] = {}

    def start(sigma: int, shares: int, size: int) -> list[concurrent.futures.Future[np.ndarray]]:
        sizes = [min(PART, size - first) for first in range(0, size, PART)]
        return [
            workers.submit(_drawn, sigma, shares, part, secrets.bits("noise")) for part in sizes
        ]

    def draw(sigma: int, shares: int, size: int) -> np.ndarray:
        if shares * size < PART:
            return _drawn(sigma, shares, size, secrets.bits("noise"))
        case = (sigma, shares, size)
        parts = ahead.pop(case, None) or start(*case)
        ahead.clear()  # noise of another kind is no longer wanted
        found = np.concatenate([part.result() for part in parts])
        ahead[case] = start(*case)
        return found

    return draw


def _drawn(sigma: int, shares: int, size: int, bits: Callable[[int], np.ndarray]) -> np.ndarray:
    draws = (discrete_gaussian(sigma, size, bits) for _ in range(shares))
    total = functools.reduce(np.add, draws, np.zeros(size, np.int64))
    return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
