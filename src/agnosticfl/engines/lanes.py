# SPDX-License-Identifier: Apache-2.0
"""Clients packed onto a few lanes: one compiled computation per round, lanes × |W| of memory.

The batches of all clients are laid end to end on L lanes, longest client first. At each step all
lanes do one batch side by side; at a client's last batch its contribution is added to the one sum,
and its lane goes back to w_{t-1} for the next one. Nothing grows with the cohort but its plan.
Where a few clients have far more data than the others, a few lanes take the last steps.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from agnosticfl.core import tree
from agnosticfl.core.algorithm1 import local_step
from agnosticfl.core.channel import is_plain
from agnosticfl.core.contribution import Broadcast, SumOverClients, Total
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.programs import program_of, shapes_of
from agnosticfl.core.random import any_key, client_key, step_key
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork, local_start
from agnosticfl.engines.base import Blocks, Engine, Stacked, as_it_is, compiled, remembered
from agnosticfl.engines.helpers import feed, plan, shards, slices
from agnosticfl.engines.helpers.batches import LocalStep, batch_at, local_step_at
from agnosticfl.engines.helpers.feed import MakePool, Pool
from agnosticfl.engines.helpers.losses import (
    ClientStats,
    client_stats,
    num_loss_batches,
    with_weights,
)
from agnosticfl.engines.helpers.plan import Layout, Plan, Planner
from agnosticfl.engines.helpers.shards import InStep
from agnosticfl.engines.helpers.summing import as_one_sum, client_by_client
from agnosticfl.engines.helpers.tuning import Tuner, fastest, may_be_fastest
from agnosticfl.errors import check
from agnosticfl.registry import ENGINES
from agnosticfl.spans import span

TINY = 4096  # numbers of a model that trains faster than it is called
MOST_TINY_LANES = 64  # for such a model,
MOST_LANES = 25  # and for any other
MOST_ROUNDS = 128  # in a block,
BLOCK_EXAMPLES = 2**18  # and examples: together they keep a block well below a second
TIMED_STEPS = 8  # of a round, to know how long it takes
PORTIONS = 5  # of the lanes of an accelerator, in which clients at their last step are added up


class LaneCohort(NamedTuple):
    """A cohort packed onto lanes."""

    pool: Pool
    cohort: Plan
    layout: Layout


class Ending(NamedTuple):
    """The clients whose last step is s."""

    slot: Any  # [L] int32, whose step each lane takes
    lanes: Any  # [L] int32; those whose clients end come first
    number: Any  # [] int32, so many of them
    most: Any  # [] int32, on any of the devices that take the step together


class Width(NamedTuple):
    """How many lanes there are."""

    lanes: int  # L
    narrow: int  # once the others have nothing left to do


@ENGINES.add("lanes")
def lanes_engine(
    work: ClientWork,
    data: FederatedData,
    sampler: Sampler,
    seed: int,
    *,
    lanes: int | None = None,
    devices: int | None = None,
    model_devices: int | None = None,
    tuner: Tuner | None = None,
    pool: MakePool | None = None,
) -> Engine[LaneCohort]:
    """An engine with lanes on one or more devices, which share each cohort.

    Args:
      lanes: L, the lanes of each device; if None as `tuner` finds, or else as suit the model.
      devices: how many of each process; all if None (one for a tiny model, which they would slow).
      model_devices: how many of them take each step together, with a slice of the model each, and
        have lanes in common (see `helpers.slices`); every device by itself if None.
      tuner: how to find the fastest number of lanes.
      pool: how all examples come onto a device, where they fit.
    """
    check(lanes is None or lanes >= 1, f"number of lanes is {lanes}; it must be at least 1")
    size = tree.size(shapes_of(work.model.init, any_key()))
    group = model_devices or 1
    check(
        group == 1 or size > TINY,
        f"model_devices is {group}; a model of {size} numbers is computed by one device "
        f"(one of more than {TINY} can be divided)",
    )
    check(
        group == 1 or is_plain(work.channel),
        f"model_devices is {group}; with dp, secure or compress it must be 1",
    )
    row = shards.mesh_of(1 if devices is None and size <= TINY else devices)
    mesh = slices.in_groups(row, group)
    parts = shards.num_parts(mesh)
    planner = plan.make_planner(work, data, sampler, seed, parts)
    clients = len(planner.largest)
    choices: dict[str, Any] = {"engine": "lanes", "devices": mesh.size, "model_devices": group}
    number = min(lanes or suitable_lanes(size, clients), clients)
    candidates = [number]
    # One device may have no room for the model, let alone for lanes that are timed.
    if lanes is None and tuner is not None and group == 1:
        candidates = worth_timing(planner, parts, tried_lanes(size, clients))
        number = min(candidates[0], clients)
    if tuner is not None and len(candidates) > 1:
        seconds_of = functools.partial(training_seconds, work, planner, parts)
        with span("finding the lanes"):
            choices["seconds"] = tuner(_case(work, planner), candidates, seconds_of)
        number = shards.of_first_process(fastest(choices["seconds"]))
    width = Width(number, number if size <= TINY else plan.narrow_lanes(planner, number, parts))
    alone = functools.partial(on_one_device, pool or feed.on_device)
    make = alone if mesh.size == 1 else functools.partial(on_devices, mesh)
    return make(work, planner, size, width)._replace(choices={**choices, **width._asdict()})


def on_one_device(
    make_pool: MakePool, work: ClientWork, planner: Planner, size: int, width: Width
) -> Engine[LaneCohort]:
    """An engine with so many lanes on the default device, for a model of `size` numbers."""
    data = planner.data
    pool = make_pool(data) if feed.fits(data) else None
    room = plan.usual_examples(planner) if pool is None else 0

    def packed(t: int) -> LaneCohort:
        stacked = plan.plans(planner, range(t, t + 1))
        layout = tree.row(plan.layouts(planner, stacked, *width), 0)
        return jax.device_put(
            LaneCohort(*feed.placed(data, pool, tree.row(stacked, 0), room), layout)
        )

    if size > TINY:
        # Compiled by itself it is the same program for every weight rule and server optimizer.
        summed = compiled_sum(work, width.narrow)
        return Engine(feed.prefetched(packed), summed, compile=as_it_is)
    rounds = min(MOST_ROUNDS, BLOCK_EXAMPLES // plan.most_examples(planner))
    blocks = None
    if pool is not None and rounds > 1:
        blocks = in_blocks(planner, pool, width, rounds)
    return Engine(feed.prefetched(packed), sum_over(work, width.narrow), blocks=blocks)


def on_devices(
    mesh: Mesh, work: ClientWork, planner: Planner, _size: int, width: Width
) -> Engine[LaneCohort]:
    """So many lanes on each device of `mesh`, or group of devices, with its part of a cohort."""
    data, own, number = planner.data, shards.own_parts(mesh), shards.num_parts(mesh)
    pool = shards.everywhere(mesh, feed.whole(data)) if feed.fits(data) else None
    room = plan.usual_examples(planner, number) if pool is None else 0

    def packed(t: int) -> LaneCohort:
        parts = plan.parted(planner, t, number)
        cohorts = plan.plans_of(planner, np.full(len(own), t), parts[own])
        layouts = plan.layouts(planner, cohorts, *width)
        most = max(plan.largest_part(planner, parts), room)
        examples, cohorts = feed.placed(data, pool, cohorts, most)
        examples = examples if pool is not None else shards.spread(mesh, examples)
        return LaneCohort(examples, *shards.spread(mesh, (cohorts, layouts)))

    specs: Any = (shards.EACH if pool is None else shards.SAME, shards.EACH, shards.EACH)
    group = slices.group_of(mesh)
    # The devices of a group talk within a step, perhaps in ways that take all devices together.
    in_step = shards.by_itself if group == 1 else shards.as_the_longest
    own_sum = sum_over(slices.divided(work, group), width.narrow, in_step)
    total = shards.over_parts(mesh, own_sum, LaneCohort(*specs))
    return Engine(feed.prefetched(packed), total, compile=slices.compile_on(mesh))


@remembered
def sum_over(
    work: ClientWork, narrow: int, in_step: InStep = shards.by_itself
) -> SumOverClients[LaneCohort]:
    """Both passes over a cohort, or over the part of it that one device has."""

    def sum_over_clients(sent: Broadcast, packed: LaneCohort) -> Total:
        pool, cohort, _ = packed
        batches = in_step(num_loss_batches(cohort))
        stats = client_stats(work.model, sent.params, sent.alpha, pool, cohort, batches)
        return train(work, sent, packed, stats, narrow, in_step)

    return sum_over_clients


@remembered
def compiled_sum(work: ClientWork, narrow: int) -> SumOverClients[LaneCohort]:
    """The same, compiled."""
    return compiled(sum_over(work, narrow))


def suitable_lanes(size: int, clients: int) -> int:
    """L for a model of `size` numbers (|W|) and a cohort of `clients` (c).

    Tiny models want all clients side by side. Others fill a CPU's cores with one batch; on an
    accelerator two clients per lane still pack well, and the limit bounds memory for large cohorts.
    """
    if size <= TINY:
        return MOST_TINY_LANES
    return 1 if jax.default_backend() == "cpu" else min(-(-clients // 2), MOST_LANES)


def tried_lanes(size: int, clients: int) -> list[int]:
    """Numbers of lanes worth timing, for the same model and cohort."""
    if size <= TINY:
        return [suitable_lanes(size, clients)]
    on_cpu = jax.default_backend() == "cpu"
    numbers = (1, 4) if on_cpu else (-(-clients // share) for share in (4, 2, 1))
    return sorted({min(number, clients, MOST_LANES) for number in numbers})


def worth_timing(planner: Planner, parts: int, numbers: list[int]) -> list[int]:
    """Those of `numbers` that only a measurement can tell apart.

    On an accelerator a step takes the time of its kernels' starts and of its lanes' work, so that
    the steps of the first rounds tell most of it. A CPU's time is not so simple.
    """
    if jax.default_backend() == "cpu" or len(numbers) == 1:
        return numbers

    def cost(lanes: int) -> Callable[[float], float]:
        narrow = plan.narrow_lanes(planner, lanes, parts)
        steps = plan.first_steps(planner, lanes, narrow, parts)
        return lambda r: steps.wide * (r + lanes) + steps.late * (r + narrow)

    return may_be_fastest({number: cost(number) for number in numbers})


def training_seconds(work: ClientWork, planner: Planner, parts: int, number: int) -> float:
    """What round 1's training pass takes with `number` lanes, from the time of a few steps."""
    cohorts = plan.plans_of(planner, np.ones(1, int), plan.parted(planner, 1, parts)[:1])
    narrow = plan.narrow_lanes(planner, number, parts)
    layouts = plan.layouts(planner, cohorts, number, narrow)
    cohort, layout = tree.row((cohorts, layouts), 0)
    packed = jax.device_put(LaneCohort(*feed.of_cohort(planner.data, cohort), layout))
    params, alpha = program_of(work.model.init)(jax.random.key(0)), jnp.ones(work.num_domains)
    sent = Broadcast(params, alpha, work.channel.init())
    stats = with_weights(alpha, jnp.zeros(cohort.domain_count.shape), cohort)

    @compiled
    def some_steps(sent: Broadcast, packed: LaneCohort, stats: ClientStats, steps: Array) -> Any:
        packed = packed._replace(layout=packed.layout._replace(steps=steps, wide=steps))
        return train(work, sent, packed, stats, number)

    def seconds(steps: int) -> float:
        started = time.perf_counter()
        jax.block_until_ready(some_steps(sent, packed, stats, jnp.int32(steps)))
        return time.perf_counter() - started

    steps, wide = int(layout.steps), int(layout.wide)
    timed = min(TIMED_STEPS, steps)
    seconds(timed)  # compiles
    whole, rest = (min(seconds(n) for _ in range(3)) for n in (timed, 0))
    return (whole - rest) / max(timed, 1) * (wide + (steps - wide) * narrow / number)


def _case(work: ClientWork, planner: Planner) -> Any:
    """What the fastest number of lanes depends on, in words that a file can hold."""
    one = {name: array[:1] for name, array in planner.data.examples.items()}
    params = shapes_of(work.model.init, any_key())
    shapes = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves((params, one))]
    config: Any = jax.config
    device = [jax.devices()[0].device_kind, jax.__version__, config.jax_default_matmul_precision]
    return [*device, work.batch_size, work.epochs, planner.largest.tolist(), shapes]


def in_blocks(planner: Planner, pool: Pool, width: Width, rounds: int) -> Blocks[LaneCohort]:
    """Blocks of `rounds` rounds: a loop over their plans, with all data on the device."""

    def packed(t: int) -> Stacked:
        cohorts = plan.plans(planner, range(t, t + rounds))
        layouts = plan.layouts(planner, cohorts, *width)
        return Stacked(pool, jax.device_put((feed.for_device(cohorts), layouts)))

    return Blocks(rounds, feed.prefetched(packed, rounds), _lane_cohort)


def _lane_cohort(shared: Pool, own: tuple[Plan, Layout]) -> LaneCohort:
    return LaneCohort(shared, *own)


def train(
    work: ClientWork,
    sent: Broadcast,
    packed: LaneCohort,
    stats: ClientStats,
    narrow: int,
    in_step: InStep = shards.by_itself,
) -> Any:
    """The training pass: Σ_k over the clients of the cohort; `narrow` lanes at its end."""
    pool, cohort, layout = packed
    params, alpha = sent.params, sent.alpha
    keys = jax.vmap(lambda k: client_key(cohort.seed, cohort.round, k))(cohort.clients)
    places = jax.vmap(jax.vmap(lambda k, n: local_step_at(work, cohort, k, n)))(
        layout.slot, layout.number
    )
    ending = jnp.argsort(~places.last, axis=1)  # [S, L] lanes; those whose clients end come first
    number = jnp.sum(places.last, axis=1)  # [S] clients whose last step is s
    steps, wide, most = in_step((layout.steps, layout.wide, number))
    start = local_start(work, params, sent.client_rate)
    summing = as_one_sum if is_plain(work.channel) else client_by_client
    zero, add, finished = summing(work, sent, cohort, stats, keys)

    def one_lane(lane: Any, slot: Array, place: LocalStep) -> Any:
        key = step_key(keys[slot], place.epoch, place.batch)
        batch = batch_at(work, pool, cohort, place)
        before, state = lane
        beta, size = stats.beta[slot], jnp.sum(stats.domain_count[slot])
        return local_step(work, before, state, batch, alpha, beta, size, key)

    def step(s: Array, carry: Any) -> Any:
        lanes, total = carry
        width = jax.tree.leaves(lanes)[0].shape[0]
        slot, place = jax.tree.map(lambda leaf: leaf[s, :width], (layout.slot, places))
        trained = side_by_side(one_lane, width)(lanes, slot, place)
        # What clients at their last step contribute; then their lanes go back to w_{t-1}.
        at_once = clients_at_once(width)
        if at_once < width:
            own = Ending(slot, ending[s, :width], number[s], most[s])
            return in_portions(add, start, at_once, own, trained, total)
        total = jax.lax.cond(
            most[s] > 0, add, lambda total, *_: total, total, trained[0], slot, place.last
        )
        return jax.vmap(tree.select, (0, None, 0))(place.last, start, trained), total

    width = layout.slot.shape[1]
    lanes = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *leaf.shape)), start)
    lanes, total = jax.lax.fori_loop(0, wide, step, (lanes, zero))
    if narrow < width:
        lanes = jax.tree.map(lambda leaf: leaf[:narrow], lanes)
        _, total = jax.lax.fori_loop(wide, steps, step, (lanes, total))
    return finished(total)


def clients_at_once(lanes: int) -> int:
    """How many clients at their last step are added up together.

    An accelerator waits for its memory: it should not read the models of all lanes where a few end.
    """
    return lanes if jax.default_backend() == "cpu" else -(-lanes // PORTIONS)


def in_portions(
    add: Callable[..., Any], start: Any, at_once: int, ending: Ending, trained: Any, total: Any
) -> tuple[Any, Any]:
    """The lanes and the sum after a step at which some clients end, so many of them at a time.

    A loop, not a condition: a condition would copy all lanes.

    Args:
      add: adds the clients of some lanes: (sum, their w, their slots, which of them are real).
      start: what a lane begins with.
      trained: the lanes after the step, [L, …].
    """
    none = len(ending.lanes)  # the number of no lane
    order = jnp.pad(ending.lanes, (0, at_once), constant_values=none)

    def portion(i: Array, carry: Any) -> Any:
        lanes, total = carry
        place = i * at_once + jnp.arange(at_once)
        real = place < ending.number
        lane = jnp.where(real, order[place], none)
        own, slot = jax.tree.map(
            lambda leaf: leaf.at[lane].get(mode="clip"), (lanes[0], ending.slot)
        )
        total = add(total, own, slot, real)
        back = jax.tree.map(lambda leaf, first: leaf.at[lane].set(first, mode="drop"), lanes, start)
        return back, total

    return jax.lax.fori_loop(0, -(-ending.most // at_once), portion, (trained, total))


def side_by_side(function: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    """`jax.vmap`, but a lane alone is left alone: a CPU takes twice as long for a batch of one."""
    if lanes > 1:
        return jax.vmap(function)

    def alone(*stacked: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], function(*tree.row(stacked, 0)))

    return alone
