# SPDX-License-Identifier: Apache-2.0
"""How good a model is for each domain, and for the worst one."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agnosticfl.client import Batch, take
from agnosticfl.data.federated import FederatedData
from agnosticfl.errors import check
from agnosticfl.metrics import Mean
from agnosticfl.model import Model, Params

Results: TypeAlias = dict[str, dict[str, float | None]]  # domain -> metric -> value


class Worst(NamedTuple):
    """The domain that is served worst, and how far the others are from it."""

    domain: str
    loss: float
    gap: float  # largest minus smallest domain loss


def evaluator(
    model: Model, data: FederatedData, batch_size: int = 512
) -> Callable[[Params], Results]:
    """A function that measures parameters on all examples of `data`, domain by domain.

    Each metric is summed over the examples and divided once, so the size of the batches does not
    matter. A domain without examples has the value None.
    """
    check(batch_size >= 1, f"evaluation batch size is {batch_size}; it must be at least 1")
    step = jax.jit(lambda params, batch: _domain_sums(model, params, batch, data.num_domains))

    def run(params: Params) -> Results:
        sums = [jax.device_get(step(params, batch)) for batch in _batches(data, batch_size)]
        total = {name: _add([s[name] for s in sums]) for name in sums[0]}
        return {
            domain: {name: _ratio(mean.total[i], mean.weight[i]) for name, mean in total.items()}
            for i, domain in enumerate(data.domains)
        }

    return run


def worst_domain(results: Results) -> Worst:
    """The domain with the largest loss."""
    losses = {domain: r["loss"] for domain, r in results.items()}
    known = {domain: loss for domain, loss in losses.items() if loss is not None}
    domain = max(known, key=lambda d: known[d])
    return Worst(domain, known[domain], known[domain] - min(known.values()))


def _domain_sums(model: Model, params: Params, batch: Batch, num_domains: int) -> dict[str, Mean]:
    def by_domain(values: Array) -> Array:
        values = jnp.where(batch.mask > 0, values, 0)
        return jax.ops.segment_sum(values, batch.domain, num_domains)

    loss = model.per_example_loss(params, batch.examples, None)
    metrics: Mapping[str, Mean] = model.per_example_metrics(params, batch.examples)
    return jax.tree.map(by_domain, {"loss": Mean(loss, jnp.ones_like(loss)), **metrics})


def _batches(data: FederatedData, batch_size: int) -> Iterator[Batch]:
    for start in range(0, data.num_examples, batch_size):
        rows = np.arange(start, start + batch_size)
        mask = (rows < data.num_examples).astype(np.float32)
        rows = np.minimum(rows, data.num_examples - 1)  # filling repeats the last example, masked
        yield take(data, rows, mask)


def _add(sums: list[Mean]) -> Mean:
    """In double precision: a sum of millions of losses keeps its digits."""
    return Mean(*np.sum(np.asarray(sums, np.float64), axis=0))


def _ratio(total: Array, weight: Array) -> float | None:
    if not weight > 0:
        return None
    ratio = float(total) / float(weight)
    return math.inf if math.isnan(ratio) else ratio  # what is no number is worse than any
