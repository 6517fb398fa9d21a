# SPDX-License-Identifier: Apache-2.0
"""What a client works on and with: batches, and what it does in a round."""

from typing import Any, NamedTuple, get_args

import numpy as np
import optax
from jax import Array

from agnosticfl.core.channel import PLAIN, Channel
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Examples, Model, Params
from agnosticfl.core.tree import PyTree
from agnosticfl.errors import check, choose
from agnosticfl.options import Normalisation


class Batch(NamedTuple):
    """B examples with their domains. A smaller batch is padded, and its padding masked."""

    examples: Examples  # name -> [B, ...]
    domain: Array  # [B] int32, in 0 … p−1
    mask: Array  # [B] 1 for an example, 0 for padding


class ClientWork(NamedTuple):
    """What a client does in a round, the same for all clients and rounds."""

    model: Model
    optimizer: optax.GradientTransformation  # with rate γ_w
    num_domains: int  # p
    batch_size: int  # B
    epochs: int = 1  # E
    normalisation: str = "client"  # of the local loss, see `local_loss`
    channel: Channel = PLAIN  # what is done to a contribution before it is sent
    local_steps: int | None = None  # at most so many; all of E epochs if None


def take(data: FederatedData, rows: np.ndarray, mask: np.ndarray) -> Batch:
    """The examples with the numbers `rows`, an array of any shape, as (stacked) batches."""
    arrays: Any = ({k: v[rows] for k, v in data.examples.items()}, data.domain[rows], mask)
    return Batch(*arrays)


def check_work(work: ClientWork) -> ClientWork:
    """Returns `work`, or says which of its values is not allowed."""
    check(work.num_domains >= 1, f"number of domains (p) is {work.num_domains}; must be ≥ 1")
    check(work.batch_size >= 1, f"batch size (B) is {work.batch_size}; it must be at least 1")
    check(work.epochs >= 1, f"epochs (E) is {work.epochs}; it must be at least 1")
    choose(work.normalisation, get_args(Normalisation), "normalisation")
    limit = work.local_steps
    check(limit is None or limit >= 1, f"local steps is {limit}; it must be at least 1")
    return work


def local_start(
    work: ClientWork, params: Params, client_rate: Array | None
) -> tuple[Params, PyTree]:
    """Where a client begins: w_{t-1}, and its optimizer's first state.

    Args:
      client_rate: γ_w, if the optimizer keeps it in its state; as it was built if None.
    """
    state = work.optimizer.init(params)
    if client_rate is not None:
        state = optax.tree_utils.tree_set(state, learning_rate=client_rate)
    return params, state


def num_steps(work: ClientWork, size: Any) -> Any:
    """Local steps of a client with n_k = `size` examples: E⌈n_k/B⌉, or its limit if that is less.

    `size` is a NumPy or JAX integer, or an array of them.
    """
    steps = work.epochs * -(-size // work.batch_size)
    return steps if work.local_steps is None else steps.clip(max=work.local_steps)
