# SPDX-License-Identifier: Apache-2.0
"""The client's side of a secure round: `answer(member, state, request) -> (state, reply)`.

    Setup      -> Keys        two public keys for this round, signed
    Peers      -> Shares      a share of both secrets for every neighbour, in boxes
    Boxes      -> Masked      the vector under its own mask and one for each neighbour
    Survivors  -> Confirmed   the list of those who sent a vector, signed
    Unmask     -> Revealed    the seed of its own mask, and a share of each neighbour's: of the
                              same seed if it survived, else of its key for the masks of pairs

A client takes nobody's word for what it can check, and answers each request once. Keep the new
state before the reply leaves: a client that forgets what it answered could answer twice.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import msgpack
import numpy as np

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import primitives, rings
from agnosticfl.secagg.agreement import (
    Member,
    digest_of,
    graph_of,
    plan_of,
    rings_of,
    roster_digest,
)
from agnosticfl.secagg.graph import GraphPlan, holders_of, neighbours
from agnosticfl.secagg.messages import (
    Boxes,
    Confirmed,
    Keys,
    Masked,
    Peers,
    Refused,
    Revealed,
    Setup,
    Shares,
    Survivors,
    Unmask,
    kind_of,
    pack,
    parse,
)
from agnosticfl.secagg.primitives import KEY, SEED, CryptoError, random_bytes

Request = TypeVar("Request", Keys, Peers, Boxes, Survivors, Unmask)


class State(NamedTuple):
    """What a client remembers within a round, and of a round that is over its number alone."""

    waiting_for: str  # kind of the next request; "Setup" once the round is over
    number: int  # of the round
    setup: bytes = b""
    box_private: bytes = b""
    mask_seed: bytes = b""  # of the private key of the pairs' masks
    own_seed: bytes = b""  # of its own mask
    peers: Mapping[int, tuple[bytes, bytes]] = {}  # client -> its box key and mask key
    shares: Mapping[int, bytes] = {}  # client -> shares of its own seed and of its mask seed
    survivors: Sequence[int] = ()


IDLE = State("Setup", 0)


class Round(NamedTuple):
    """What follows from a round's setup, for one client."""

    setup: Setup
    name: bytes
    neighbours: Sequence[int]
    holders: Sequence[int]  # of this client's secrets


def answer(
    member: Member,
    state: State,
    request: bytes,
    vector: Callable[[], np.ndarray] | None = None,
    sent: bytes = b"",
) -> tuple[State, bytes]:
    """The reply to one request of the server, or `Refused`, which leaves the state as it was.

    Args:
      vector: gives the numbers modulo 2³² to be summed, uint32; called for `Boxes` only.
      sent: digest of what this client was given to work on: that of the round, or it refuses.
    """
    kind = kind_of(request)
    if kind == "Setup":
        return _advertise(member, state, parse(request, Setup))
    over = state.waiting_for == "Setup"
    _need(not over, f"{kind} came, but this client has answered all of round {state.number}")
    _need(kind == state.waiting_for, f"{kind} came while waiting for {state.waiting_for}")
    round = _round(member, state)
    if kind == "Peers":
        return _share(member, state, round, _parse(request, Peers, round))
    if kind == "Boxes":
        # A server that sends one client something else could find its vector in the sum.
        same = sent == round.setup.sent
        _need(same, "what this client was given to work on is not what the others were given")
        return _mask(member, state, round, _parse(request, Boxes, round), vector)
    if kind == "Survivors":
        return _confirm(member, state, round, _parse(request, Survivors, round))
    return _reveal(member, state, round, _parse(request, Unmask, round))


def dump(state: State) -> bytes:
    """A state as bytes, with its secrets: they must not leave the client."""
    fields = [list(f.items()) if isinstance(f, Mapping) else f for f in state]
    return cast("bytes", msgpack.packb(fields))


def load(data: bytes) -> State:
    """The inverse of `dump`."""
    state = State(*msgpack.unpackb(data, use_list=False))
    return state._replace(peers=dict(state.peers), shares=dict(state.shares))


def _advertise(member: Member, state: State, setup: Setup) -> tuple[State, bytes]:
    agreement, me, cohort = member.agreement, member.place, setup.cohort
    _need(setup.run == agreement.run, "the round is of another run")
    _need(setup.number > state.number, f"round {setup.number} is not after round {state.number}")
    _need(setup.roster == roster_digest(agreement), "the roster changed")
    known = max(cohort, default=0) < len(agreement.roster)
    _need(known, "the cohort holds clients that are not registered")
    _need(me in cohort, "this client is not in the cohort")
    fewest = agreement.fewest
    _need(len(cohort) >= fewest, f"the cohort has {len(cohort)} clients, fewer than {fewest}")
    asked, plan = GraphPlan(setup.neighbours, setup.threshold), plan_of(agreement, len(cohort))
    _need(asked == plan, f"the server's {asked} is not the {plan} of the federation")
    _need(setup.short <= setup.length, f"{setup.short} of {setup.length} numbers are short")
    name = digest_of(setup)
    box_private, mask_seed, own_seed = random_bytes(KEY), random_bytes(SEED), random_bytes(SEED)
    unsigned = Keys(
        round=name,
        sender=me,
        box_key=primitives.public_key(box_private),
        mask_key=primitives.public_key(keys.private_key(mask_seed, name)),
        commitment=keys.commitment(own_seed, name, me),
        signature=b"",
    )
    signature = member.signing_key.sign(keys.signed_keys(unsigned))
    state = State("Peers", setup.number, pack(setup), box_private, mask_seed, own_seed)
    return state, pack(unsigned._replace(signature=signature))


def _share(member: Member, state: State, round: Round, message: Peers) -> tuple[State, bytes]:
    me, setup = member.place, round.setup
    peers: dict[int, tuple[bytes, bytes]] = {}
    for entry in message.keys:
        peer = _parse(entry, Keys, round)
        _need(peer.sender in round.neighbours, f"client {peer.sender} is not a neighbour")
        _need(peer.sender not in peers, f"client {peer.sender} is listed twice")
        with _refusing(f"keys of client {peer.sender}"):
            verify_key = member.agreement.roster[peer.sender]
            primitives.check_signature(verify_key, peer.signature, keys.signed_keys(peer))
        peers[peer.sender] = (peer.box_key, peer.mask_key)
    _need_holders(round, {*peers, me}, "sent keys")
    own, mask = (
        primitives.split(seed, setup.threshold, len(round.holders))
        for seed in (state.own_seed, state.mask_seed)
    )
    shares = {holder: own[j] + mask[j] for j, holder in enumerate(round.holders)}
    boxes: dict[int, bytes] = {}
    for peer in peers:
        with _refusing(f"keys of client {peer}"):
            key = keys.box_key(state.box_private, peers[peer][0], round.name, me, peer)
        context = keys.box_context(setup.run, setup.number, round.name, me, peer)
        boxes[peer] = primitives.seal(key, shares[peer], context)
    state = state._replace(waiting_for="Boxes", peers=peers)
    return state, pack(Shares(round.name, me, boxes))


def _mask(
    member: Member,
    state: State,
    round: Round,
    message: Boxes,
    vector: Callable[[], np.ndarray] | None,
) -> tuple[State, bytes]:
    me, setup = member.place, round.setup
    shares: dict[int, bytes] = {}
    for peer, box in message.boxes.items():
        _need(peer in state.peers, f"there is a box of client {peer}, who sent no keys")
        context = keys.box_context(setup.run, setup.number, round.name, peer, me)
        with _refusing(f"shares of client {peer}"):
            key = keys.box_key(state.box_private, state.peers[peer][0], round.name, peer, me)
            shares[peer] = primitives.unseal(key, box, context)
    _need_holders(round, {*shares, me}, "sent shares")
    if vector is None:
        raise Refused("this client has no vector to send")
    masked = np.array(vector(), "<u4")
    expected = f"the round is for {setup.length} numbers"
    _need(masked.shape == (setup.length,), f"the vector has shape {masked.shape}; {expected}")
    primitives.add_mask(masked, keys.own_mask(state.own_seed, round.name), +1)
    private = keys.private_key(state.mask_seed, round.name)
    for peer in message.boxes:
        with _refusing(f"keys of client {peer}"):
            key = keys.pair_mask(private, state.peers[peer][1], round.name, me, peer)
        primitives.add_mask(masked, key, keys.mask_sign(me, peer))
    state = state._replace(waiting_for="Survivors", shares=shares)
    return state, pack(Masked(round.name, me, rings.to_bytes(masked, rings_of(setup))))


def _confirm(member: Member, state: State, round: Round, message: Survivors) -> tuple[State, bytes]:
    alive, fewest = message.alive, member.agreement.fewest
    _need(set(alive) <= set(round.setup.cohort), "a survivor is not in the cohort")
    _need(member.place in alive, "this client sent its vector and is not among the survivors")
    silent = (set(alive) & set(round.neighbours)) - set(state.shares)
    _need(not silent, f"survivor {min(silent, default=0)} sent this client no shares")
    _need(len(alive) >= fewest, f"there are {len(alive)} survivors, fewer than {fewest}")
    _need_holders(round, alive, "survived")
    signature = member.signing_key.sign(keys.signed_survivors(round.name, alive))
    state = state._replace(waiting_for="Unmask", survivors=alive)
    return state, pack(Confirmed(round.name, member.place, signature))


def _reveal(member: Member, state: State, round: Round, message: Unmask) -> tuple[State, bytes]:
    alive, dead, known = set(message.alive), set(message.dead), set(state.shares)
    both, changed = alive & dead, alive ^ (known & set(state.survivors))
    _need(not both, f"client {min(both, default=0)} is listed both alive and dead")
    _need(not changed, f"client {min(changed, default=0)} is not what the survivors' list said")
    _need(dead == known - alive, "the dead are not the neighbours that did not survive")
    _need(set(message.signatures) <= set(round.holders), "a signature is not of a neighbour")
    _need_holders(round, {*message.signatures, member.place}, "signed the list of survivors")
    signed = keys.signed_survivors(round.name, state.survivors)
    for client, signature in message.signatures.items():
        with _refusing(f"list of survivors of client {client}"):
            primitives.check_signature(member.agreement.roster[client], signature, signed)
    reply = Revealed(
        round.name,
        member.place,
        state.own_seed,
        alive={client: state.shares[client][:SEED] for client in message.alive},
        dead={client: state.shares[client][SEED:] for client in message.dead},
    )
    return State("Setup", state.number), pack(reply)


def _round(member: Member, state: State) -> Round:
    setup = parse(state.setup, Setup)
    own = neighbours(graph_of(setup), member.place)
    return Round(setup, digest_of(setup), own, holders_of(member.place, own))


def _parse(data: bytes, kind: type[Request], round: Round) -> Request:
    message = parse(data, kind)
    _need(message.round == round.name, f"{kind.__name__} is of another round")
    return message


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise Refused(problem)


def _need_holders(round: Round, clients: Collection[int], what: str) -> None:
    """Of those who hold shares of this client's secrets, t or more must have done something."""
    number = len(set(round.holders) & set(clients))
    least, of = round.setup.threshold, len(round.holders)
    _need(number >= least, f"too few peers: {number} of {of} {what}, and {least} must")


@contextlib.contextmanager
def _refusing(what: str) -> Generator[None]:
    try:
        yield
    except CryptoError as error:
        raise Refused(f"{what}: {error}") from None
