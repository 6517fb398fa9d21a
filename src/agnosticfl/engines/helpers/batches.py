# SPDX-License-Identifier: Apache-2.0
"""One local step of one client: where it stands, and the batch that it takes."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.work import Batch, ClientWork, num_steps
from agnosticfl.engines.helpers.feed import Pool
from agnosticfl.engines.helpers.plan import Plan


class LocalStep(NamedTuple):
    """Where one local step stands in its client's work."""

    start: Array  # place of its first example in the cohort's rows
    size: Array  # number of examples, from 0 (no step at all) to B
    epoch: Array
    batch: Array
    last: Array


def local_step_at(work: ClientWork, cohort: Plan, slot: Array, number: Array) -> LocalStep:
    """Local step `number` of the client in `slot`; a step of size 0 if the number is −1."""
    begin, size = cohort.offsets[slot], cohort.offsets[slot + 1] - cohort.offsets[slot]
    batches = jnp.maximum(-(-size // work.batch_size), 1)
    epoch, batch = number // batches, number % batches
    real = number >= 0
    return LocalStep(
        start=begin + batch * work.batch_size,
        size=jnp.where(real, jnp.minimum(size - batch * work.batch_size, work.batch_size), 0),
        epoch=epoch,
        batch=batch,
        last=real & (number == num_steps(work, size) - 1),
    )


def batch_at(work: ClientWork, pool: Pool, cohort: Plan, place: LocalStep) -> Batch:
    """The batch of a local step, gathered by its examples' numbers.

    Padding repeats an example of the same batch: another client's could bring a NaN of its own.
    """
    number = jnp.arange(work.batch_size)
    rows = cohort.rows[place.start + jnp.minimum(number, jnp.maximum(place.size - 1, 0))]
    examples = {name: values[rows] for name, values in pool.examples.items()}
    return Batch(examples, pool.domain[rows], (number < place.size).astype(jnp.float32))
