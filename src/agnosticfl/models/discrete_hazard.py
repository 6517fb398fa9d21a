# SPDX-License-Identifier: Apache-2.0
"""Survival in discrete time: the odds of an event in each interval, for those still there."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from agnosticfl.core.model import Examples, Model
from agnosticfl.errors import check
from agnosticfl.models.helpers.survival import DEFAULT_METRICS, Risk, survival
from agnosticfl.options import AtLeastOne, Positive
from agnosticfl.registry import MODELS

START = -3.0  # log odds at first: an event in an interval is rare


@MODELS.add("hazard")
def hazard(
    features: AtLeastOne,
    edges: Sequence[Positive],
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Model:
    """A hazard for each interval of time, its log odds moved by a linear risk.

    The loss of an example is −log likelihood of what is known of it: no event in the intervals it
    has passed and, if there was an event, that one in its own. A sum over examples, so it needs
    nobody else's data, unlike Cox's. An interval in which an example is lost sight of counts as not
    begun.

    Args:
      features: numbers of an example.
      edges: where one interval ends and the next begins, in the unit of the times; the last one has
        no end.
      metrics: names of metrics of values, which get minus the log risk and (time, event).
    """
    check(
        len(edges) >= 1 and edges[0] > 0 and all(a < b for a, b in pairwise(edges)),
        f"edges of hazard is {list(edges)}; they must be above 0, at least one, and rise",
    )
    ends = jnp.asarray(edges, jnp.float32)

    def loss(module: Hazard, time: Array, event: Array, examples: Examples) -> Array:
        odds = module.base[None] + module.risk(examples["x"])[:, None]  # log odds, [n, intervals]
        own = jnp.searchsorted(ends, time)  # an event at an edge belongs to the interval before it
        passed = jnp.arange(odds.shape[1])[None] < own[:, None]
        survived = jnp.sum(jnp.where(passed, jax.nn.softplus(odds), 0), axis=1)
        last = jnp.take_along_axis(odds, own[:, None], axis=1)[:, 0]
        return survived + event * jax.nn.softplus(-last)

    create = partial(Hazard, features, len(edges) + 1)
    return survival(create, loss, features, metrics)


class Hazard(nnx.Module):
    """The log odds of each interval, and a risk that is added to all of them."""

    def __init__(self, features: int, intervals: int, rngs: nnx.Rngs):
        self.risk = Risk(features, rngs)
        self.base = nnx.Param(jnp.full(intervals, START))
