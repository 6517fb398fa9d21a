# SPDX-License-Identifier: Apache-2.0
"""The one seam of the program: how a round's sum over clients is obtained."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl import tree
from agnosticfl.channel import Channel, Decoded
from agnosticfl.client import ClientWork
from agnosticfl.data.federated import FederatedData
from agnosticfl.model import Params
from agnosticfl.sampling import Sampler

SERVER = 2**32 - 1  # what a round's key is folded with for the server; no client has this number


class Broadcast(NamedTuple):
    """What the server sends to every client of a cohort."""

    params: Params  # w_{t-1}
    alpha: Array  # [p] α_t
    channel: Any = ()  # state of the channel


# (what is sent down, cohort) -> Σ_k of what the clients' channel lets through; with a plain channel
# that is the `ClientSum` itself.
SumOverClients: TypeAlias = Callable[[Broadcast, Any], Any]


class Blocks(NamedTuple):
    """Many rounds in one compiled call, for a model that takes less time than its call does."""

    rounds: int  # R, the same in every call
    cohorts: Callable[[int], Any]  # round t -> the input of rounds t … t+R−1
    # round -> a compiled (state, cohorts) -> (states, infos), both stacked, [R, …]
    compile: Callable[[Any], Any]


def compiled(function: Any, **options: Any) -> Any:
    """`jax.jit`, with loops that an NVIDIA card runs by itself, without asking the host."""
    kinds = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
    on_card = {"xla_gpu_enable_command_buffer": kinds}
    nvidia = "cuda" in jax.local_devices()[0].client.platform_version
    return jax.jit(function, compiler_options=on_card if nvidia else None, **options)


class Engine(NamedTuple):
    """A way to sum over the clients of a cohort."""

    cohort: Callable[[int], Any]  # round t -> its input: who takes part, with what data
    sum_over_clients: SumOverClients
    compile: Callable[[Any], Any] = compiled  # what is done to a round before it is called
    blocks: Blocks | None = None
    settings: Mapping[str, Any] = MappingProxyType({})  # what it chose for itself, to be recorded


# An engine is made from the client's work, the data, who takes part, and the seed.
EngineBuilder: TypeAlias = Callable[[ClientWork, FederatedData, Sampler, int], Engine]


def with_unit_alpha(
    sum_over_clients: SumOverClients, channel: Channel
) -> tuple[SumOverClients, Channel]:
    """Sends α with 1 as its largest entry, and brings Σ_k β^k Δ^k and Σ_k β^k back to α's scale.

    The scale of α cancels in the clients' losses and in the mean update; what it changes is the
    size of β^k, which a channel can bound only so.
    """

    def summed(sent: Broadcast, cohort: Any) -> tuple[Any, Array]:
        scale = jnp.max(sent.alpha)
        unit = sent._replace(alpha=tree.divide(sent.alpha, scale))
        return sum_over_clients(unit, cohort), scale

    def decode(state: Any, summed: tuple[Any, Array], key: Array) -> Decoded:
        encoded, scale = summed
        total, state, report = channel.decode(state, encoded, key)
        delta = tree.scale(scale, total.weighted_delta)
        return Decoded(total._replace(weighted_delta=delta, beta=scale * total.beta), state, report)

    return summed, channel._replace(decode=decode)


def client_key(seed: int | Array, t: int | Array, client: int | Array) -> Array:
    """The random key of client k in round t: the same in every engine.

    Args:
      seed: a number, or the data of the key that JAX makes of it, [2] uint32.
    """
    key = (
        jax.random.key(seed) if jnp.ndim(seed) == 0 else jax.random.wrap_key_data(jnp.asarray(seed))
    )
    return jax.random.fold_in(jax.random.fold_in(key, t), client)


def server_key(seed: int, t: int | Array) -> Array:
    """The random key of the server in round t, for the channel's decoding."""
    return client_key(seed, t, SERVER)
