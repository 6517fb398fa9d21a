# SPDX-License-Identifier: Apache-2.0
"""Programs that are compiled by threads: a run's own while it begins, later runs' while it goes on.

An accelerator's programs take a host a core and many seconds each, and it has more cores than one.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import jax
import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.state import ServerState
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.methods.base import Algorithm
from agnosticfl.runs import processes
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config
from agnosticfl.spans import span

BESIDE = 0.02  # of a device's memory may lanes' models take; a round takes some times that

# Rounds that were compiled here, or are: those that another seed of a run has, too.
_begun: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

MakeBuilt: TypeAlias = Callable[[Config, int | None, Tuner | None], Built]
Wait: TypeAlias = Callable[[], None]  # until it is done
Ahead: TypeAlias = Callable[[Config], Wait]


def not_ahead(_: Config) -> Wait:
    """For a CPU, whose cores have enough to do."""
    return lambda: None


def compile_first_round(built: Built) -> Wait:
    """Begins to compile a round of a run, while the run makes its first state.

    The round is played with zeros in place of a state, and forgotten; whatever goes wrong is left
    for the run to say. Nothing is done for a model so large that there might be no room, nor for
    contributions that are noised, masked or compressed, nor for the next seed of the same run.
    """
    config, algorithm = built.config, built.algorithm
    examples = built.data.train.domain  # of other data a round has other shapes
    if _begun.get(algorithm.round) is examples:
        return lambda: None
    plain = (config.dp, config.secure, config.compress) == (None, None, None)
    if not plain or algorithm.block is not None or not processes.may_work_beside_rounds():
        return lambda: None
    _begun[algorithm.round] = examples

    def play() -> None:
        with contextlib.suppress(Exception), span("compiling ahead"):
            state = _zeros(jax.eval_shape(algorithm.init))
            if _has_room(algorithm, state):
                algorithm.round(state, algorithm.cohort(1))

    return _start(play, "agnosticfl-first-round")


def _zeros(shapes: ServerState) -> ServerState:
    """Arrays of these shapes, without a program that makes them."""
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), shapes)


def compile_rounds(make_built: MakeBuilt, tuner: Tuner, config: Config) -> Wait:
    """Begins to compile the rounds of a run.

    Its first round, or block of rounds, is played and forgotten: the run itself will find the
    programs, if `make_built` shares them. Whatever goes wrong is left for the run to say. Nothing
    is done for a private run, which draws no noise that it does not use, nor for a model so large
    that two runs at a time might not have room.

    Args:
      tuner: one that measures nothing, since the device has other work.
    """
    if config.dp is not None:
        return not_ahead(config)

    def play() -> None:
        with contextlib.suppress(Exception), span("compiling ahead"):
            algorithm = make_built(config, None, tuner).algorithm
            state = algorithm.init()
            if not _has_room(algorithm, state):
                return
            if algorithm.block is None:
                algorithm.round(state, algorithm.cohort(1))
            else:
                algorithm.block(state)

    return _start(play, f"agnosticfl-ahead-{config.algorithm}")


def _start(play: Callable[[], None], name: str) -> Wait:
    """Lets a thread of this name do it."""
    thread = threading.Thread(target=play, name=name)
    thread.start()

    def wait() -> None:
        with span("waiting for programs"):
            thread.join()

    return wait


def _has_room(algorithm: Algorithm, state: ServerState) -> bool:
    """Whether a round of it can be played beside another run; a CPU does not tell its memory."""
    memory = jax.local_devices()[0].memory_stats()
    models = int(algorithm.choices.get("lanes", 1)) * tree.num_bytes(state.params)
    return memory is None or models <= BESIDE * memory["bytes_limit"]
