# SPDX-License-Identifier: Apache-2.0
"""A round's index plan: who takes part, which examples in which order, and which lane does what.

Made by the host, pure in (seed, t), and small: the examples themselves are gathered later by their
numbers. Several rounds are planned at once, so that a tiny model does not wait for its planner. The
arrays have the size of the largest possible cohort, so a round is compiled once; the numbers
`offsets` and `steps` say how much of them is used, so padding costs nothing but its bytes.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from agnosticfl.core.federated import FederatedData
from agnosticfl.core.random import example_order
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.work import ClientWork, num_steps

NOBODY = -1  # in place of a client: a slot without examples
FIRST_ROUNDS = 64  # that tell how large cohorts are


class Plan(NamedTuple):
    """How a cohort is laid out: who takes part, and with which examples.

    A client's place in the cohort is its slot, 0 … c−1.
    """

    seed: Any  # [2] uint32, what `jax.random.key` makes of it: a number, not a part of the program
    round: Any  # t, [] int32
    clients: Any  # C_t, [c] int32; `NOBODY` where parts of a cohort have fewer than others
    offsets: Any  # [c+1] int32; slot k has rows[offsets[k]] … rows[offsets[k+1]−1]
    domain_count: Any  # [c, p] float32, N^k_i
    rows: Any  # [N] the numbers of the examples, client after client, shuffled
    owner: Any  # [N] int32, the slot each belongs to; c, one too many, for padding


class Layout(NamedTuple):
    """Which local step lane l takes at step s; clients follow each other on a lane."""

    slot: Any  # [S, L] int32, whose step it is
    number: Any  # [S, L] int32, which of the client's own; −1 if there is none
    steps: Any  # [] int32, how many of the S are used,
    wide: Any  # [] int32, and after how many of them only the first lanes have work left


class Planner(NamedTuple):
    """What plans are made from; nothing of it grows with the number of clients."""

    data: FederatedData
    sampler: Sampler
    largest: np.ndarray  # [c] n_k of the c largest clients; fewer where parts share a cohort
    work: ClientWork
    seed: int


def make_planner(
    work: ClientWork, data: FederatedData, sampler: Sampler, seed: int, parts: int = 1
) -> Planner:
    """The planner of one engine, or of each of the `parts` that share its cohorts."""
    clients = -(-len(sampler(1)) // parts)
    largest = np.partition(data.sizes, -clients)[-clients:]
    return Planner(data, sampler, largest, work, seed)


def plans(planner: Planner, rounds: range) -> Plan:
    """The plans of some rounds, stacked: every array has an axis of rounds in front."""
    return plans_of(planner, np.asarray(rounds), np.stack([planner.sampler(t) for t in rounds]))


def plans_of(planner: Planner, rounds: np.ndarray, clients: np.ndarray) -> Plan:
    """The cohorts, stacked, of these clients, [R, c], in these rounds, [R]."""
    sizes = _sizes(planner, clients)
    somebody = np.maximum(clients, 0)
    t = np.repeat(rounds, clients.shape[1])
    longest = int(sizes.max())
    order = example_order(planner.seed, t, somebody.ravel(), sizes.ravel(), longest)
    rows = planner.data.offsets[somebody.ravel(), None] + order
    real = np.arange(longest) < sizes.reshape(-1, 1)
    offsets = np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0)))
    shape = (len(rounds), most_examples(planner))
    flat, owner = np.zeros(shape, np.int64), np.full(shape, clients.shape[1], np.int32)
    used = np.arange(shape[1]) < offsets[:, -1:]
    flat[used] = rows[real]
    each = np.repeat(np.arange(clients.size), sizes.ravel())  # [all examples] whose it is
    owner[used] = each % clients.shape[1]
    return Plan(
        np.tile(_key_data(planner.seed), (len(rounds), 1)),
        rounds.astype(np.int32),
        clients.astype(np.int32),
        offsets.astype(np.int32),
        _domain_count(planner.data, each, flat[used], clients.shape),
        flat,
        owner,
    )


@functools.cache
def _key_data(seed: int) -> np.ndarray:
    return np.asarray(jax.random.key_data(jax.random.key(seed)))


def _domain_count(
    data: FederatedData, owner: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """N^k_i, [*shape, p], of clients who own the examples `rows`."""
    segment = owner * data.num_domains + data.domain[rows]
    count = np.bincount(segment, minlength=math.prod(shape) * data.num_domains)
    return count.reshape(*shape, data.num_domains).astype(np.float32)


def parted(planner: Planner, t: int, parts: int) -> np.ndarray:
    """C_t among `parts`, [parts, ⌈c / parts⌉]: longest first, each to the part with least to do.

    Within a part clients keep their order, so that one part is the cohort itself.
    """
    clients = planner.sampler(t)
    steps = local_steps(planner, planner.data.sizes_of(clients))
    room = -(-len(clients) // parts)
    members: list[list[int]] = [[] for _ in range(parts)]
    load = np.zeros(parts)
    for place in np.argsort(-steps, kind="stable"):
        part = int(load.argmin())
        members[part].append(int(place))
        load[part] = np.inf if len(members[part]) == room else load[part] + steps[place]
    divided = np.full((parts, room), NOBODY, clients.dtype)
    for own, places in zip(divided, members, strict=True):
        own[: len(places)] = clients[sorted(places)]
    return divided


def largest_part(planner: Planner, parts: np.ndarray) -> int:
    """The examples of the part that has most of them."""
    return int(_sizes(planner, parts).sum(axis=1).max())


def usual_examples(planner: Planner, parts: int = 1) -> int:
    """The most examples that a cohort, or a part of one, has in the first rounds.

    Gathered cohorts have room for as many, so that hardly any later one needs another shape.
    """
    rounds = range(1, FIRST_ROUNDS + 1)
    return max(largest_part(planner, parted(planner, t, parts)) for t in rounds)


def _sizes(planner: Planner, clients: np.ndarray) -> np.ndarray:
    """n_k; nobody has no examples."""
    return np.where(clients == NOBODY, 0, planner.data.sizes_of(np.maximum(clients, 0)))


def layouts(planner: Planner, cohorts: Plan, lanes: int, narrow: int | None = None) -> Layout:
    """The clients of each cohort on `lanes` lanes: longest first, each to the emptiest lane.

    The first `narrow` lanes (all if None) are those that have most to do.
    """
    steps = local_steps(planner, np.diff(cohorts.offsets, axis=1))  # [R, c]
    lane, begin, load = longest_first(steps, lanes)
    shape = (len(steps), most_steps(planner, lanes), lanes)
    slot, number = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    each = np.repeat(np.arange(steps.size), steps.ravel())  # [all steps] the client that takes it
    own = np.arange(len(each)) - (np.cumsum(steps) - steps.ravel())[each]
    place = (each // steps.shape[1], begin.ravel()[each] + own, lane.ravel()[each])
    slot[place], number[place] = each % steps.shape[1], own
    load = load.astype(np.int32)
    wide = load[:, narrow] if narrow is not None and narrow < lanes else load[:, 0]
    return Layout(slot, number, load[:, 0], wide)


def longest_first(steps: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Graham's rule for jobs of `steps`, [R, c]: their lanes and first steps; the lanes' loads.

    The fullest lane comes first.
    """
    if lanes >= steps.shape[1]:  # a lane for everybody
        fullest = np.argsort(-steps, axis=1, kind="stable")
        load = np.pad(np.take_along_axis(steps, fullest, 1), ((0, 0), (0, lanes - steps.shape[1])))
        return np.argsort(fullest, axis=1, kind="stable"), np.zeros_like(steps), load
    lane, begin = np.zeros_like(steps), np.zeros_like(steps)
    load = np.zeros((len(steps), lanes), steps.dtype)
    every = np.arange(len(steps))
    for client in np.argsort(-steps, axis=1, kind="stable").T:
        emptiest = load.argmin(axis=1)
        lane[every, client], begin[every, client] = emptiest, load[every, emptiest]
        load[every, emptiest] += steps[every, client]
    fullest = np.argsort(-load, axis=1, kind="stable")
    place = np.argsort(fullest, axis=1, kind="stable")  # of each lane among them
    return np.take_along_axis(place, lane, 1), begin, np.take_along_axis(load, fullest, 1)


def narrow_lanes(planner: Planner, lanes: int, parts: int = 1) -> int:
    """How many lanes to go on with when the others have run out of clients; `lanes` if all.

    One long client would keep all of them for itself. What it costs is counted on the first rounds;
    a second width makes the program twice as long, so it must save a quarter.
    """
    load = _first_loads(planner, lanes, parts)

    def cost(narrow: int) -> int:
        steps = _widths(load, lanes, narrow)
        return steps.wide * lanes + steps.late * narrow

    best = min((max(lanes // share, 1) for share in (2, 4, 8, lanes)), key=cost)
    return best if cost(best) < 0.75 * cost(lanes) else lanes


class Steps(NamedTuple):
    """The steps of the first rounds."""

    wide: int  # of all lanes,
    late: int  # and of the first ones alone, once the others have run out of clients


def first_steps(planner: Planner, lanes: int, narrow: int, parts: int = 1) -> Steps:
    """How many steps the first rounds take with so many lanes."""
    return _widths(_first_loads(planner, lanes, parts), lanes, narrow)


def _widths(load: np.ndarray, lanes: int, narrow: int) -> Steps:
    wide = load[:, narrow] if narrow < lanes else load[:, 0]
    return Steps(int(wide.sum()), int((load[:, 0] - wide).sum()))


def _first_loads(planner: Planner, lanes: int, parts: int) -> np.ndarray:
    """The steps of each lane in the first rounds, the fullest lane first."""
    rounds = range(1, FIRST_ROUNDS + 1)
    clients = np.concatenate([parted(planner, t, parts) for t in rounds])
    return longest_first(local_steps(planner, _sizes(planner, clients)), lanes)[2]


def local_steps(planner: Planner, sizes: np.ndarray) -> np.ndarray:
    """How many steps clients of these sizes take."""
    return num_steps(planner.work, sizes)


def most_examples(planner: Planner) -> int:
    """The examples of the largest possible cohort, in whole batches of the loss pass."""
    return max(-(-int(planner.largest.sum()) // loss_batch()), 1) * loss_batch()


@functools.cache
def loss_batch() -> int:
    """Examples in one step of the loss pass: enough to keep the device busy."""
    return 256 if jax.default_backend() == "cpu" else 1024


def most_steps(planner: Planner, lanes: int) -> int:
    """A bound on the steps of the longest lane (Graham 1966): mean load plus longest client."""
    steps = local_steps(planner, planner.largest)
    total, longest = int(steps.sum()), int(steps.max())
    return max(longest if lanes >= len(steps) else min(total, -(-total // lanes) + longest), 1)
