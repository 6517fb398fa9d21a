# SPDX-License-Identifier: Apache-2.0
"""The one seam of the program: how a round's `ClientSum` is obtained."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jax import Array

from agnosticfl.client import ClientSum, ClientWork
from agnosticfl.data.federated import FederatedData
from agnosticfl.model import Params
from agnosticfl.sampling import Sampler

SumOverClients: TypeAlias = Callable[[Params, Array, Any], ClientSum]  # (w, α, cohort) -> Σ_k


class Blocks(NamedTuple):
    """Many rounds in one compiled call, for a model that takes less time than its call does."""

    rounds: int  # R, the same in every call
    cohorts: Callable[[int], Any]  # round t -> the input of rounds t … t+R−1
    # round -> a compiled (state, cohorts) -> (states, infos), both stacked, [R, …]
    compile: Callable[[Any], Any]


class Engine(NamedTuple):
    """A way to sum over the clients of a cohort."""

    cohort: Callable[[int], Any]  # round t -> its input: who takes part, with what data
    sum_over_clients: SumOverClients
    compile: Callable[[Any], Any] = jax.jit  # what is done to a whole round before it is called
    blocks: Blocks | None = None


# An engine is made from the client's work, the data, who takes part, and the seed.
EngineBuilder: TypeAlias = Callable[[ClientWork, FederatedData, Sampler, int], Engine]


def client_key(seed: int, t: int | Array, client: int | Array) -> Array:
    """The random key of client k in round t: the same in every engine."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), t), client)
