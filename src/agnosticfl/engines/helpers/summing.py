# SPDX-License-Identifier: Apache-2.0
"""How contributions that end at different steps of different lanes come into one sum."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from agnosticfl.core import tree
from agnosticfl.core.algorithm1 import contribution, weighted_delta
from agnosticfl.core.channel import sent_by_client, summand_zeros
from agnosticfl.core.contribution import Broadcast, ClientSum, contribution_shapes
from agnosticfl.core.model import Params
from agnosticfl.core.work import ClientWork
from agnosticfl.engines.helpers.losses import ClientStats
from agnosticfl.engines.helpers.plan import NOBODY, Plan


class Summing(NamedTuple):
    """A sum in the making, carried from step to step."""

    zero: Any
    # (sum, w of the lanes [L, …], their clients' slots [L], whose last step it was [L]) -> sum
    add: Callable[[Any, Params, Array, Array], Any]
    finish: Callable[[Any], Any]  # sum -> what the round returns


def as_one_sum(
    work: ClientWork, sent: Broadcast, cohort: Plan, stats: ClientStats, keys: Array
) -> Summing:
    """For a plain channel: all lanes at once into Σ_k β^k Δ^k; the other numbers at the end."""
    del work, cohort, keys
    params = sent.params

    def add(carry: Any, trained: Params, slot: Array, last: Array) -> Any:
        total, usable = carry
        delta = jax.vmap(weighted_delta, (None, 0, 0))(params, trained, stats.beta[slot])
        finite = jax.vmap(tree.all_finite)(delta)
        failed = (last & ~finite)[:, None] & (slot[:, None] == jnp.arange(len(usable))[None])
        usable &= ~jnp.any(failed, axis=0)
        added = last & usable[slot]
        return jax.tree.map(lambda t, d: t + _sum_where(added, d), total, delta), usable

    def finish(carry: Any) -> ClientSum:
        total, usable = carry
        sums = jax.tree.map(lambda leaf: _sum_where(usable, leaf), stats)
        left_out = jnp.sum(jnp.where(usable, 0.0, 1.0))
        return ClientSum(total, sums.beta, sums.domain_loss, sums.domain_count, left_out)

    zero = (jax.tree.map(jnp.zeros_like, params), jax.vmap(tree.all_finite)(stats))
    return Summing(zero, add, finish)


def client_by_client(
    work: ClientWork, sent: Broadcast, cohort: Plan, stats: ClientStats, keys: Array
) -> Summing:
    """For any channel: each client's contribution is encoded once, where it ends.

    Whole numbers have the same sum in any order, so lanes that send such are encoded side by side.
    """
    shapes = contribution_shapes(work.model, work.num_domains)
    zero = summand_zeros(work.channel, shapes)
    in_any_order = all(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(zero))

    def message(trained: Params, slot: Array) -> Any:
        own = tree.row(stats, slot)
        sums = contribution(sent.params, trained, own.beta, own.domain_loss, own.domain_count)
        return sent_by_client(work.channel, sent.channel_state, sums, keys[slot])

    def with_client(total: Any, trained: Params, slot: Array) -> Any:
        return tree.add(total, message(trained, slot))

    def one_by_one(total: Any, trained: Params, slot: Array, last: Array) -> Any:
        def lane(total: Any, own: Any) -> tuple[Any, None]:
            trained, slot, last = own
            return jax.lax.cond(last, with_client, _unchanged, total, trained, slot), None

        return jax.lax.scan(lane, total, (trained, slot, last))[0]

    def at_once(total: Any, trained: Params, slot: Array, last: Array) -> Any:
        messages = jax.vmap(message)(trained, slot)
        return jax.tree.map(lambda t, m: t + _sum_where(last, m), total, messages)

    def add(total: Any, trained: Params, slot: Array, last: Array) -> Any:
        several = in_any_order and len(slot) > 1
        return (at_once if several else one_by_one)(total, trained, slot, last)

    def finish(total: Any) -> Any:
        # Clients without examples take no step, yet send a message like everybody else.
        empty = (cohort.offsets[1:] == cohort.offsets[:-1]) & (cohort.clients != NOBODY)

        def client(slot: Array, total: Any) -> Any:
            return jax.lax.cond(empty[slot], with_client, _unchanged, total, sent.params, slot)

        def all_of_them(total: Any) -> Any:
            return jax.lax.fori_loop(0, len(empty), client, total)

        return jax.lax.cond(jnp.any(empty), all_of_them, lambda total: total, total)

    return Summing(zero, add, finish)


def _unchanged(total: Any, trained: Params, slot: Array) -> Any:
    del trained, slot
    return total


def _sum_where(condition: Array, leaf: Array) -> Array:
    """Σ over the first axis of those numbers for which `condition` holds."""
    wanted = condition.reshape(-1, *(1,) * (leaf.ndim - 1))
    return jnp.sum(jnp.where(wanted, leaf, jnp.zeros_like(leaf)), axis=0, dtype=leaf.dtype)
