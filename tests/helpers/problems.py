# SPDX-License-Identifier: Apache-2.0
"""Small problems that the tests share, with numbers a reader can follow."""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from agnosticfl import agnostic_fedavg, evaluator, from_functions
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Model

# One optimizer, and one model for all who ask for the same: so JAX knows their programs again.
SGD = optax.sgd(0.1)


@functools.cache
def linear(start: float = 4.0) -> Model:
    """Per-example loss x·w."""
    return from_functions(lambda _: {"w": jnp.float32(start)}, lambda w, e: w["w"] * e["x"])


@functools.cache
def quadratic(start: float = 1.0) -> Model:
    """Per-example loss (x − w)²."""
    return from_functions(
        lambda _: {"w": jnp.float32(start)}, lambda w, e: jnp.square(e["x"] - w["w"])
    )


def federated(
    x: Sequence[Sequence[float]], domain: Sequence[Sequence[int]], num_domains: int
) -> FederatedData:
    """A data set from a list of numbers and a list of domains per client; clients may be empty."""
    sizes = [len(values) for values in x]
    flat = np.array([v for values in x for v in values] or [0.0], np.float32)
    ids = np.array([d for values in domain for d in values] or [0], np.int32)
    return FederatedData(
        examples={"x": flat},
        domain=ids,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        client_ids=[f"cid{k}" for k in range(len(x))],
        domains=tuple(str(i) for i in range(num_domains)),
    )


def random_federated(
    seed: int,
    clients: int = 6,
    num_domains: int = 3,
    largest: int = 11,
    examples: int | None = None,
) -> FederatedData:
    """Clients of 0 to `largest` examples; both kinds of partition occur.

    Args:
      examples: of all clients together, so that data of other seeds need no other program.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, largest + 1, size=clients)
    sizes[0] = largest
    while examples is not None and sizes.sum() != examples:
        missing = np.sign(examples - sizes.sum())
        free = np.flatnonzero(sizes[1:] < largest if missing > 0 else sizes[1:] > 0)
        sizes[1 + rng.choice(free)] += missing
    x = [rng.normal(size=n).tolist() for n in sizes]
    domain = [
        (rng.integers(num_domains, size=n) if rng.random() < 0.5 else np.full(n, k % num_domains))
        for k, n in enumerate(sizes)
    ]
    return federated(x, [d.tolist() for d in domain], num_domains)


def assert_learns(
    model: Model, data: FederatedData, rounds: int, rate: float, batch_size: int, **options: Any
) -> None:
    """Training with all clients brings the loss of every domain below 0.6 of what it was."""
    algorithm = agnostic_fedavg(
        model,
        data,
        clients_per_round=data.num_clients,
        batch_size=batch_size,
        client_optimizer=optax.sgd(rate),
        **options,
    )
    measure = evaluator(model, data, batch_size=64)
    state = algorithm.init()
    before = measure(state.params)
    for t in range(1, rounds + 1):
        state, _ = algorithm.round(state, algorithm.cohort(t))
    after = measure(state.params)
    for domain in data.domains:
        old, new = before[domain]["loss"], after[domain]["loss"]
        assert old is not None
        assert new is not None
        assert new < 0.6 * old
