# SPDX-License-Identifier: Apache-2.0
"""What an engine is: a way to obtain a round's sum over clients."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import numpy as np

from agnosticfl.core.compiling import for_nvidia
from agnosticfl.core.contribution import SumOverClients
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.programs import Program
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.core.tree import PyTree
from agnosticfl.core.work import ClientWork
from agnosticfl.errors import check

C = TypeVar("C")  # a cohort, as one engine lays it out: what its clients bring to a round
F = TypeVar("F", bound=Callable[..., Any])
PROGRAMS = 16  # of each kind are kept

# (state, cohort) -> the next state, and whatever else the round gives (an algorithm: its info)
Round: TypeAlias = Callable[[ServerState, Any], tuple[Any, ...]]


class Cohort(NamedTuple):
    """Who takes part in round t. Engines lay the clients' examples out in ways of their own."""

    round: int  # t
    clients: np.ndarray  # C_t


class Stacked(NamedTuple):
    """The cohorts of many rounds."""

    shared: PyTree  # what is the same in all of them
    each: PyTree  # what each has of its own, stacked, [R, …]


class Blocks(NamedTuple, Generic[C]):
    """Many rounds in one compiled call, for a model that takes less time than its call does."""

    rounds: int  # R, the same in every call
    cohorts: Callable[[int], Stacked]  # round t -> the input of rounds t … t+R−1
    cohort: Callable[[PyTree, PyTree], C]  # (what is shared, a round's own) -> its cohort


def compiled(function: F, **options: Any) -> F:
    """A `Program` with loops that an NVIDIA card runs by itself, without asking the host.

    Kernels of which none needs what the other computes may run at the same time: most of a step's
    are too short to fill a card.
    """
    kinds = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
    on_card = for_nvidia(
        xla_gpu_enable_command_buffer=kinds, xla_gpu_command_buffer_scheduling_mode="CONCURRENT"
    )
    return Program(function, compiler_options=on_card, **options)  # type: ignore[return-value]


def remembered(make: F) -> F:
    """`make`, of which the last few results are kept.

    The same model, optimizers, rule and channel give the same program: another seed of a run needs
    no second trace. What cannot be told from other things, for want of a hash, is made anew.
    """
    kept = functools.lru_cache(PROGRAMS)(make)

    @functools.wraps(make)
    def get(*parts: Any) -> Any:
        try:
            hash(parts)
        except TypeError:
            return make(*parts)
        return kept(*parts)

    return get  # type: ignore[return-value]


def compile_block(
    blocks: Blocks[C], round: Round
) -> Callable[[ServerState], tuple[ServerState, RoundInfo]]:
    """A compiled loop over rounds: state -> each round's state and info, both stacked, [R, …]."""

    block = _block_program(blocks.cohort, round)
    return lambda state: block(state, blocks.cohorts(int(state.round) + 1))


@remembered
def _block_program(cohort: Callable[[PyTree, PyTree], C], round: Round) -> Callable[..., Any]:
    @compiled
    def block(state: ServerState, stacked: Stacked) -> Any:
        def one_round(state: ServerState, own: PyTree) -> tuple[Any, Any]:
            state, info = round(state, cohort(stacked.shared, own))
            return state, (state, info)

        return jax.lax.scan(one_round, state, stacked.each)[1]

    return block


def paired(one: Blocks[C], other: Blocks[Any]) -> Blocks[tuple[C, Any]]:
    """Blocks of rounds that get two cohorts."""

    def cohorts(t: int) -> Stacked:
        a, b = one.cohorts(t), other.cohorts(t)
        return Stacked((a.shared, b.shared), (a.each, b.each))

    def cohort(shared: PyTree, own: PyTree) -> tuple[C, Any]:
        return one.cohort(shared[0], own[0]), other.cohort(shared[1], own[1])

    return Blocks(one.rounds, cohorts, cohort)


def as_it_is(round: F) -> F:
    """A round whose parts are compiled, and which is not compiled itself."""
    return round


class Compile(Protocol):
    """What is done to a round before it is called; it stays a function of the same kind."""

    def __call__(self, round: F, /) -> F: ...


class Engine(NamedTuple, Generic[C]):
    """A way to sum over the clients of a cohort."""

    cohort: Callable[[int], C]  # round t -> who takes part, with what data
    sum_over_clients: SumOverClients[C]
    compile: Compile = compiled  # what is done to a round before it is called
    blocks: Blocks[C] | None = None
    choices: Mapping[str, Any] = MappingProxyType({})  # what it chose for itself, to be recorded


def check_one_process(name: str) -> None:
    """For an engine that several processes cannot share."""
    check(
        jax.process_count() == 1,
        f"engine {name!r} cannot be shared by processes; auto, lanes and steps can",
    )


class EngineBuilder(Protocol):
    """Makes an engine from a client's work, the data, who takes part, and the seed.

    One that takes `lanes`, `devices`, `model_devices`, `tuner` or `pool` by name is given those of
    the run.
    """

    def __call__(
        self, work: ClientWork, data: FederatedData, sampler: Sampler, seed: int, /
    ) -> Engine[Any]: ...
