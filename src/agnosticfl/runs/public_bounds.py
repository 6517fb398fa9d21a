# SPDX-License-Identifier: Apache-2.0
"""Bounds for a private run, found on data that is public or synthetic.

On such data nothing has to be hidden, so the quantiles that bounds should be at are followed. A
private run starts from what is found, or stays there where its noise lets it follow nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from agnosticfl.channels.dp.clipping import ClipBounds, Follow, PrivacyState, private
from agnosticfl.channels.dp.noise import Scale, units_for
from agnosticfl.core.channel import Channel
from agnosticfl.core.model import Model
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.runs.build import assemble, build_engine
from agnosticfl.runs.config import Config

# Options of dp, and what they are if nothing is known.
FIRST = {"clip": 1.0, "examples": 100.0, "loss": 5.0}
# Where a search begins: bounds rise by a fifth in a round, but sink by a fiftieth (of a quantile of
# 0.9 at most a tenth can be within too much).
LOW = {"clip": 0.2, "examples": 2.0, "loss": 0.1}


def find_bounds(
    config: Config,
    rounds: int = 100,
    quantile: float = 0.5,
    on_round: Callable[[int], Any] = lambda _: None,
) -> dict[str, float]:
    """The bounds at which training on these clients comes to rest, as options of `dp`.

    Args:
      config: a task whose data is public or synthetic, and like the private data.
      rounds: how many to train; the bounds are those of the second half.
      quantile: of the updates' norms.
    """
    plain = msgspec.structs.replace(
        config, dp=None, secure=None, compress=None, evaluation_every=0, rounds=rounds
    )
    model: Model = MODELS.build(plain.model, "model")
    channel = following(plain.clients_per_round, quantile, LOW)
    data, engine = SOURCES.build(plain.data, "data"), build_engine(plain, None, None)
    algorithm = assemble(plain, model, data, engine, channel=lambda _: channel).algorithm
    state, seen = algorithm.init(), list[np.ndarray]()
    for t in range(1, rounds + 1):
        state, _ = algorithm.round(state, algorithm.cohort(t))
        seen.append(np.array(_own(state.channel_state).bounds, np.float64))
        on_round(t)
    middle = np.exp(np.log(seen[rounds // 2 :]).mean(axis=0))
    return as_options(ClipBounds(*middle.tolist()))


def following(clients: int, quantile: float, first: dict[str, float] | None = None) -> Channel:
    """The channel of a private run, but without any noise: its bounds show where they belong."""
    given = FIRST | (first or {})
    bounds = ClipBounds(
        given["clip"] * given["examples"],
        given["loss"] * given["examples"],
        given["examples"],
    )
    # With σ = 0 no domain counts as hidden by noise.
    silent = Scale(units_for(clients, 1.0), 0, 1)
    return private(bounds, silent, clients, Follow(quantile, 1), _as_it_is)


def as_options(bounds: ClipBounds) -> dict[str, float]:
    """Bounds in the units that the options of dp have."""
    return {
        "clip": bounds.update / bounds.count,
        "examples": bounds.count,
        "loss": bounds.loss / bounds.count,
    }


def _as_it_is(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    del sigma
    return np.asarray(total, np.float32)


def _own(state: Any) -> PrivacyState:
    assert isinstance(state, PrivacyState)
    return state
