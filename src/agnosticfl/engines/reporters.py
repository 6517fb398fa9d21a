# SPDX-License-Identifier: Apache-2.0
"""Clients who only report: they measure the model they are sent and answer (L^k, N^k)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Params
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork
from agnosticfl.engines.helpers import feed, plan
from agnosticfl.engines.helpers.feed import Pool
from agnosticfl.engines.helpers.losses import loss_by_steps, num_loss_batches
from agnosticfl.engines.helpers.plan import Plan


class DomainSum(NamedTuple):
    """What those who report add up to."""

    domain_loss: Array  # [p] Σ_k L^k_i, summed over examples
    domain_count: Array  # [p] Σ_k N^k_i


class Reporters(NamedTuple):
    """Who reports, and the sum of what they say."""

    cohort: Callable[[int], Any]  # round t -> its input
    domain_sum: Callable[[Params, Any], DomainSum]
    clients_per_round: int


class ReportCohort(NamedTuple):
    """Who reports in a round, with their examples."""

    pool: Pool
    cohort: Plan
    loss_batches: int


def reporters(work: ClientWork, data: FederatedData, sampler: Sampler, seed: int) -> Reporters:
    """The clients that `sampler` draws; of those with a loss that is not finite, nothing counts."""
    planner = plan.make_planner(work, data, sampler, seed)
    measure = loss_by_steps(work.model, work.num_domains)

    def fed(t: int) -> ReportCohort:
        cohort = tree.row(plan.plans(planner, range(t, t + 1)), 0)
        batches = int(num_loss_batches(cohort))
        pool, cohort = jax.device_put(feed.of_cohort(data, cohort))
        return ReportCohort(pool, cohort, batches)

    @jax.jit
    def total(loss: Array, count: Array) -> DomainSum:
        usable = jnp.all(jnp.isfinite(loss), axis=1, keepdims=True)
        return DomainSum(*(jnp.sum(jnp.where(usable, x, 0), axis=0) for x in (loss, count)))

    def domain_sum(params: Params, fed: ReportCohort) -> DomainSum:
        loss = measure(params, fed.pool, fed.cohort, fed.loss_batches)
        return total(loss, fed.cohort.domain_count)

    return Reporters(feed.prefetched(fed), domain_sum, len(sampler(1)))
