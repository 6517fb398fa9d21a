# SPDX-License-Identifier: Apache-2.0
"""The client's side of secure rounds: `answer(member, state, request) -> (state, reply)`.

    Join       -> Joined      that it takes part, and a commitment to what it draws, signed
    Setup      -> Keys        two public keys for this round and what it drew, signed
    Peers      -> Shares      a share of both secrets for every neighbour, in boxes
    Boxes      -> Masked      the vector under its own mask and one for each neighbour
               or Complaint   that boxes do not open, and whose; it leaves the round by that
    Survivors  -> Confirmed   the list of those who sent a vector, signed
    Unmask     -> Revealed    the seed of its own mask, and a share of each neighbour's: of the
                              same seed if it survived, else of its key for the masks of pairs

The first three prepare a round, and can be asked while another one is on: what is to be summed is
said with `Boxes`. A client takes nobody's word for what it can check, answers each request once,
has a vector under masks in one round of a run at a time, and helps to open one sum of a round of
the algorithm, however often it is tried. What begins something (`Join`, `Setup`, the `Sum` in
`Boxes`) must be signed by the server's key and agree with what the client knows. Keep the new state
before the reply leaves: a client that forgets what it answered could answer twice.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import draw as draws
from agnosticfl.secagg import memory, primitives, rings
from agnosticfl.secagg.agreement import (
    Member,
    agreed,
    digest_of,
    graph_of,
    is_ring,
    reckoned_dishonest,
    rings_of,
)
from agnosticfl.secagg.company import check_company, check_noise, check_weight
from agnosticfl.secagg.graph import GraphPlan, holders_of, neighbours, quorum, tolerates
from agnosticfl.secagg.memory import Part, State
from agnosticfl.secagg.messages import (
    Boxes,
    Complaint,
    Confirmed,
    Join,
    Joined,
    Keys,
    Masked,
    Over,
    Peers,
    Refused,
    Revealed,
    Setup,
    Shares,
    Sum,
    Survivors,
    Unmask,
    kind_of,
    pack,
    parse,
)
from agnosticfl.secagg.primitives import KEY, SEED, CryptoError, random_bytes

Begin = TypeVar("Begin", Join, Setup)
Begun = TypeVar("Begun", Join, Setup, Sum)
Replied = tuple[State, bytes]

AHEAD = 10 * 60 * 1000  # milliseconds that the number of a round may be ahead of a client's clock


class Work(NamedTuple):
    """What a client has to send."""

    vector: np.ndarray  # the numbers modulo 2³² to be summed, uint32
    weighty: Collection[str] = ()  # the domains that have weight in it, if domains are stated


class Round(NamedTuple):
    """What follows from a round's set-up, for one client."""

    setup: Setup
    name: bytes
    neighbours: Sequence[int]
    holders: Sequence[int]  # of this client's secrets


def answer(
    member: Member,
    state: State,
    request: bytes,
    now: int,
    work: Callable[[Sum, Sequence[int]], Work] | None = None,
    sent: bytes = b"",
) -> Replied:
    """The reply to one request of the server, or `Refused`, which leaves the state as it was.

    Args:
      now: milliseconds since 1970. The number of a round is not far beyond, so that no number can
        keep a client out of all later rounds.
      work: the sum that is asked for, the cohort -> what to add; called for `Boxes` only.
      sent: digest of what this client was given to work on: that of the sum, or it refuses.
    """
    kind, of = kind_of(request), len(member.agreement.roster)
    if kind == "Join":
        return _join(member, state, _begun(member, request, Join), now)
    if kind == "Setup":
        return _advertise(member, state, _begun(member, request, Setup))
    if kind == "Over":
        over = parse(request, Over)
        return memory.without(state, over.number), pack(over)
    waiting = _waiting(state, kind)
    if kind == "Peers":
        peers = parse(request, Peers, of)
        return _share(member, state, _of_round(waiting, kind, peers.round), peers)
    if kind == "Boxes":
        boxes = parse(request, Boxes, of)
        part = _of_round(waiting, kind, boxes.round)
        return _mask(member, state, part, boxes, work, sent)
    if kind == "Survivors":
        listed = parse(request, Survivors, of)
        return _confirm(member, state, _of_sum(waiting, kind, listed.sum), listed)
    asked = parse(request, Unmask, of)
    return _reveal(member, state, _of_sum(waiting, kind, asked.sum), asked)


def _begun(member: Member, request: bytes, kind: type[Begin]) -> Begin:
    """What begins a round: of this run, and signed by the server."""
    message = parse(request, kind, len(member.agreement.roster))
    _need(message.run == member.agreement.run, "the round is of another run")
    return _signed_by_server(member, message)


def _signed_by_server(member: Member, message: Begun) -> Begun:
    with _refusing(f"{type(message).__name__} of the server"):
        signed = keys.signed_by_server(message)
        primitives.check_signature(member.agreement.server, message.signature, signed)
    return message


def _waiting(state: State, kind: str) -> list[Part]:
    """The client's parts in rounds in which this is the next request."""
    over = not state.rounds
    _need(not over, f"{kind} came, but this client has answered all of round {state.number}")
    waiting = [part for part in state.rounds if part.waiting_for == kind]
    for_what = " and ".join(part.waiting_for for part in state.rounds)
    _need(bool(waiting), f"{kind} came while waiting for {for_what}")
    return waiting


def _of_round(waiting: Sequence[Part], kind: str, name: bytes) -> Part:
    found = [part for part in waiting if digest_of(parse(part.setup, Setup)) == name]
    _need(bool(found), f"{kind} is of another round")
    return found[0]


def _of_sum(waiting: Sequence[Part], kind: str, name: bytes) -> Part:
    found = [part for part in waiting if keys.sum_name(parse(part.sum, Sum)) == name]
    _need(bool(found), f"{kind} is of another sum")
    return found[0]


def _join(member: Member, state: State, asked: Join, now: int) -> Replied:
    number = asked.number
    ahead = number - now
    _need(ahead <= AHEAD, f"round {number} is {ahead / 1000:.0f} s ahead of the clock here")
    _need(number > state.number, f"round {number} is not after round {state.number}")
    theirs, own = dict(asked.terms), member.agreement.terms
    for name in sorted({*theirs, *own}):
        here, there = own.get(name, "unknown"), theirs.get(name, "unknown")
        _need(here == there, f"{name}: {here} here, {there} on the server")
    _need(asked.agreed == agreed(member.agreement), "the roster here is not the server's")
    draw = random_bytes(KEY)
    drawn = draws.commitment(draw, draws.draw_name(asked.run, number), member.place)
    unsigned = Joined(keys.join_name(asked), member.place, drawn, b"")
    signature = member.signing_key.sign(keys.signed_join(unsigned))
    return memory.joined(state, asked.run, number, draw), pack(
        unsigned._replace(signature=signature)
    )


def _advertise(member: Member, state: State, setup: Setup) -> Replied:
    agreement, me, cohort = member.agreement, member.place, setup.cohort
    found = [part for part in _waiting(state, "Setup") if part.number == setup.number]
    _need(bool(found), f"this client did not join round {setup.number}")
    _need(setup.agreed == agreed(agreement), "the server's roster or terms are not those here")
    known = max(cohort, default=0) < len(agreement.roster)
    _need(known, "the cohort holds clients that are not registered")
    _need(me in cohort, "this client is not in the cohort")
    fewest = agreement.fewest
    _need(len(cohort) >= fewest, f"the cohort has {len(cohort)} clients, fewer than {fewest}")
    check_company(member, cohort, "in the cohort")
    check_noise(member, cohort)
    plan, n = GraphPlan(setup.neighbours, setup.threshold), len(cohort)
    liars = reckoned_dishonest(agreement, n)
    bears = tolerates(n, plan, liars)
    _need(bears, f"{plan} does not bear {liars} dishonest of {n} clients")
    _need(set(setup.draws) == (set(cohort) if is_ring(setup) else set()), "the draw is not of all")
    name, (part, *_) = digest_of(setup), found
    box_private, mask_seed, own_seed = random_bytes(KEY), random_bytes(SEED), random_bytes(SEED)
    unsigned = Keys(
        round=name,
        sender=me,
        box_key=primitives.public_key(box_private),
        mask_key=primitives.public_key(keys.private_key(mask_seed, name)),
        commitment=keys.commitment(own_seed, name, me),
        draw=part.draw if is_ring(setup) else b"",
        signature=b"",
    )
    if is_ring(setup):
        draws.check_number(setup, unsigned)
    signature = member.signing_key.sign(keys.signed_keys(unsigned))
    part = Part(
        setup.run,
        setup.number,
        "Peers",
        setup=pack(setup),
        box_private=box_private,
        mask_seed=mask_seed,
        own_seed=own_seed,
    )
    return memory.changed(state, part), pack(unsigned._replace(signature=signature))


def _share(member: Member, state: State, part: Part, message: Peers) -> Replied:
    setup, me = parse(part.setup, Setup), member.place
    part = part._replace(ring=_ring(member, setup, message))
    round = _round(member, part)
    peers = {
        peer: (sent.box_key, sent.mask_key)
        for peer, sent in _signed(member, round.name, message.keys, round.neighbours, "a neighbour")
    }
    _need_holders(round, {*peers, me}, "sent keys")
    own, mask = (
        primitives.split(seed, setup.threshold, len(round.holders))
        for seed in (part.own_seed, part.mask_seed)
    )
    shares = {holder: own[j] + mask[j] for j, holder in enumerate(round.holders)}
    boxes: dict[int, bytes] = {}
    for peer in peers:
        with _refusing(f"keys of client {peer}"):
            key = keys.box_key(part.box_private, peers[peer][0], round.name, me, peer)
        context = keys.box_context(setup.run, setup.number, round.name, me, peer)
        boxes[peer] = primitives.seal(key, shares[peer], context)
    part = part._replace(waiting_for="Boxes", peers=peers)
    return memory.changed(state, part), pack(Shares(round.name, me, boxes))


def _ring(member: Member, setup: Setup, message: Peers) -> bytes:
    """The seed of the ring, from numbers that were all committed to before one was told."""
    if not is_ring(setup):
        return b""
    name = message.round
    committee = draws.committee(name, setup.cohort)
    told = dict(_signed(member, name, message.drawn, committee, "of the draw"))
    for sent in told.values():
        draws.check_number(setup, sent)
    return draws.ring_of(name, told)


def _signed(
    member: Member, name: bytes, entries: Sequence[bytes], of: Collection[int], what: str
) -> Generator[tuple[int, Keys]]:
    """Clients' keys, each of another one of those who may send them, and signed by it."""
    seen: set[int] = set()
    for entry in entries:
        sent = parse(entry, Keys)
        _need(sent.round == name, "Keys is of another round")
        _need(sent.sender in of, f"client {sent.sender} is not {what}")
        _need(sent.sender not in seen, f"client {sent.sender} is listed twice")
        with _refusing(f"keys of client {sent.sender}"):
            verify_key = member.agreement.roster[sent.sender]
            primitives.check_signature(verify_key, sent.signature, keys.signed_keys(sent))
        seen.add(sent.sender)
        yield sent.sender, sent


def _mask(
    member: Member,
    state: State,
    part: Part,
    message: Boxes,
    work: Callable[[Sum, Sequence[int]], Work] | None,
    sent: bytes,
) -> Replied:
    me, round = member.place, _round(member, part)
    asked = _asked(member, state, round, message)
    # A server that sends one client something else could find its vector in the sum.
    same = sent == asked.sent
    _need(same, "what this client was given to work on is not what the others were given")
    name, setup = keys.sum_name(asked), round.setup
    shares, closed = _unsealed(member, part, round, message)
    if closed:
        return memory.without(state, part.number), pack(Complaint(name, me, closed))
    _need_holders(round, {*shares, me}, "sent shares")
    if work is None:
        raise Refused("this client has no vector to send")
    vector, weighty = work(asked, setup.cohort)
    check_weight(member, setup.cohort, weighty, "in the cohort")
    masked = np.array(vector, "<u4")
    expected = f"the sum is of {asked.length} numbers"
    _need(masked.shape == (asked.length,), f"the vector has shape {masked.shape}; {expected}")
    primitives.add_mask(masked, keys.own_mask(part.own_seed, name), +1)
    private = keys.private_key(part.mask_seed, round.name)
    for peer in message.boxes:
        with _refusing(f"keys of client {peer}"):
            key = keys.pair_mask(private, part.peers[peer][1], name, me, peer)
        primitives.add_mask(masked, key, keys.mask_sign(me, peer))
    part = part._replace(
        waiting_for="Survivors", shares=shares, sum=message.sum, weighty=tuple(weighty)
    )
    state = memory.without_older(memory.changed(state, part), part)
    return state, pack(Masked(name, me, rings.to_bytes(masked, rings_of(asked))))


def _asked(member: Member, state: State, round: Round, message: Boxes) -> Sum:
    """The sum that is asked for, if it is one that this client may help to open."""
    asked = _signed_by_server(member, parse(message.sum, Sum))
    _need(asked.round == round.name, "Sum is of another round")
    last = state.opened.get(round.setup.run, 0)
    _need(asked.t > last, f"this client helped to open the sum of round {last} already")
    rounds = member.agreement.rounds
    _need(asked.t <= rounds, f"round {asked.t} of the algorithm, which has {rounds}")
    _need(asked.short <= asked.length, f"{asked.short} of {asked.length} numbers are short")
    return asked


def _unsealed(
    member: Member, part: Part, round: Round, message: Boxes
) -> tuple[dict[int, bytes], list[int]]:
    """The shares in the boxes, and those whose boxes do not open."""
    me, setup = member.place, round.setup
    shares: dict[int, bytes] = {}
    closed: list[int] = []
    for peer, box in message.boxes.items():
        _need(peer in part.peers, f"there is a box of client {peer}, who sent no keys")
        context = keys.box_context(setup.run, setup.number, round.name, peer, me)
        try:
            key = keys.box_key(part.box_private, part.peers[peer][0], round.name, peer, me)
            shares[peer] = primitives.unseal(key, box, context)
        except CryptoError:
            closed.append(peer)
    return shares, closed


def _confirm(member: Member, state: State, part: Part, message: Survivors) -> Replied:
    round = _round(member, part)
    alive, fewest = message.alive, member.agreement.fewest
    _need(set(alive) <= set(round.setup.cohort), "a survivor is not in the cohort")
    _need(member.place in alive, "this client sent its vector and is not among the survivors")
    silent = (set(alive) & set(round.neighbours)) - set(part.shares)
    _need(not silent, f"survivor {min(silent, default=0)} sent this client no shares")
    _need(len(alive) >= fewest, f"there are {len(alive)} survivors, fewer than {fewest}")
    _need_holders(round, alive, "survived")
    check_company(member, alive, "among the survivors")
    check_weight(member, alive, part.weighty, "among the survivors")
    signature = member.signing_key.sign(keys.signed_survivors(message.sum, part.ring, alive))
    part = part._replace(waiting_for="Unmask", survivors=alive)
    return memory.changed(state, part), pack(Confirmed(message.sum, member.place, signature))


def _reveal(member: Member, state: State, part: Part, message: Unmask) -> Replied:
    round = _round(member, part)
    alive, dead, known = set(message.alive), set(message.dead), set(part.shares)
    both, changed = alive & dead, alive ^ (known & set(part.survivors))
    _need(not both, f"client {min(both, default=0)} is listed both alive and dead")
    _need(not changed, f"client {min(changed, default=0)} is not what the survivors' list said")
    _need(dead == known - alive, "the dead are not the neighbours that did not survive")
    signers, of = {*message.signatures, member.place}, len(round.setup.cohort)
    _need(signers <= set(part.survivors), "a signature is not of a survivor")
    _need_holders(round, signers, "signed the list of survivors")
    # So many that no two lists can have as many: all who unmask have seen the same one.
    least = quorum(of)
    _need(len(signers) >= least, f"{len(signers)} of {of} signed the list, and {least} must")
    signed = keys.signed_survivors(message.sum, part.ring, part.survivors)
    for client, signature in message.signatures.items():
        with _refusing(f"list of survivors of client {client}"):
            primitives.check_signature(member.agreement.roster[client], signature, signed)
    reply = Revealed(
        message.sum,
        member.place,
        part.own_seed,
        alive={client: part.shares[client][:SEED] for client in message.alive},
        dead={client: part.shares[client][SEED:] for client in message.dead},
    )
    opened = {**state.opened, round.setup.run: parse(part.sum, Sum).t}
    return memory.without(state._replace(opened=opened), part.number), pack(reply)


def _round(member: Member, part: Part) -> Round:
    setup = parse(part.setup, Setup)
    own = neighbours(graph_of(setup, part.ring), member.place)
    return Round(setup, digest_of(setup), own, holders_of(member.place, own))


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
