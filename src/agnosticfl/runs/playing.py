# SPDX-License-Identifier: Apache-2.0
"""The rounds of an algorithm, one after another or in blocks, and what is written down of each."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.methods.base import Algorithm
from agnosticfl.runs.records import Record
from agnosticfl.spans import span

SMALL = 16  # a model of at most so many numbers is written down whole, every round


def play(
    algorithm: Algorithm, state: ServerState, rounds: range
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """Plays rounds, one after another: state, info and seconds of each."""
    if algorithm.block is None:
        return _one_by_one(algorithm, state, rounds, ahead=jax.default_backend() != "cpu")
    return _in_blocks(algorithm.block, state, rounds)


def _one_by_one(
    algorithm: Algorithm, state: ServerState, rounds: range, ahead: bool
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """With `ahead`, a round is under way while the one before it is written down.

    An accelerator then never waits for the host. A CPU would only keep a person waiting who asks
    the run to stop.
    """
    under_way, finished = None, time.perf_counter()
    for t in rounds:
        started = finished if ahead else time.perf_counter()
        with span("first call" if t == rounds.start else "rounds"):
            state, info = under_way or algorithm.round(state, algorithm.cohort(t))
            if ahead and t + 1 in rounds:
                under_way = algorithm.round(state, algorithm.cohort(t + 1))
            info = jax.device_get(info)
        finished = time.perf_counter()
        yield state, info, finished - started


def _in_blocks(
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]], state: ServerState, rounds: range
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """A block holds the state after each of its rounds, so a run can stop or save at any of them.

    What the last one does beyond the last round is dropped.
    """
    while int(state.round) + 1 in rounds:
        started = time.perf_counter()
        with span("first call" if int(state.round) + 1 == rounds.start else "rounds"):
            states, infos = jax.device_get(block(state))
        seconds = (time.perf_counter() - started) / len(states.round)
        leaves, structure = jax.tree.flatten((states, infos))  # once: it takes longer than a round
        for i in range(len(states.round)):
            state, info = structure.unflatten([np.asarray(leaf[i]) for leaf in leaves])
            if int(state.round) in rounds:
                yield state, info, seconds


def numbers(info: RoundInfo) -> Record:
    heldout: Record = {}
    if info.heldout_loss is not None:
        heldout["heldout_loss"] = _known(info.heldout_loss, info.heldout_count)
    return {
        "domain_weights": info.domain_weights.tolist(),
        "alpha": info.alpha.tolist(),
        "loss": _known(info.mean_domain_loss, info.domain_count),
        "count": info.domain_count.tolist(),
        "beta": float(info.beta),
        "update_norm": float(info.update_norm),
        "left_out": int(info.left_out),
        "step_taken": bool(info.step_taken),
        "weights_taken": bool(info.weights_taken),
        **heldout,
        **{name: float(value) for name, value in info.channel_report.items()},
    }


def _known(mean: Any, count: Any) -> list[float | None]:
    """The mean of each domain, None where it was absent."""
    return [x if n > 0 else None for x, n in zip(mean.tolist(), count.tolist(), strict=True)]


def small_params(state: ServerState) -> Record:
    if tree.size(state.params) > SMALL:
        return {}
    return {"params": [float(v) for leaf in jax.tree.leaves(state.params) for v in np.ravel(leaf)]}
