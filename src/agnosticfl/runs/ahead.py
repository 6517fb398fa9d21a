# SPDX-License-Identifier: Apache-2.0
"""Programs of later runs, compiled by threads while earlier runs go on.

An accelerator's programs take a host a core and many seconds each, and it has more cores than one.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeAlias

import jax

from agnosticfl.core import tree
from agnosticfl.core.state import ServerState
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.methods.base import Algorithm
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config
from agnosticfl.spans import span

BESIDE = 0.02  # of a device's memory may lanes' models take; a round takes some times that

MakeBuilt: TypeAlias = Callable[[Config, int | None, Tuner | None], Built]
Wait: TypeAlias = Callable[[], None]  # until it is done
Ahead: TypeAlias = Callable[[Config], Wait]


def not_ahead(_: Config) -> Wait:
    """For a CPU, whose cores have enough to do."""
    return lambda: None


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

    thread = threading.Thread(target=play, name=f"agnosticfl-ahead-{config.algorithm}")
    thread.start()
    return thread.join


def _has_room(algorithm: Algorithm, state: ServerState) -> bool:
    """Whether a round of it can be played beside another run; a CPU does not tell its memory."""
    memory = jax.local_devices()[0].memory_stats()
    models = int(algorithm.choices.get("lanes", 1)) * tree.num_bytes(state.params)
    return memory is None or models <= BESIDE * memory["bytes_limit"]
