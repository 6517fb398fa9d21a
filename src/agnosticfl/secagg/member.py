# SPDX-License-Identifier: Apache-2.0
"""The client's side of a secure round: `answer(member, state, request) -> (state, reply)`.

    Join       -> Joined      that it takes part, by which key, signed
    Draw       -> Drawn       a commitment to a number, where the clients stand on a ring
    Setup      -> Keys        two public keys for this round and that number, signed
    Peers      -> Shares      a share of both secrets for every neighbour, in boxes
    Boxes      -> Masked      the vector under its own mask and one for each neighbour
               or Complaint   that boxes do not open, and whose; it leaves the round by that
    Survivors  -> Confirmed   the list of those who sent a vector, signed
    Unmask     -> Revealed    the seed of its own mask, and a share of each neighbour's: of the
                              same seed if it survived, else of its key for the masks of pairs

A client takes nobody's word for what it can check, answers each request once, and helps to open one
sum of a round of the algorithm, however often it is tried. What begins something (`Join`, `Draw`,
`Setup`) must be signed by the server's key and agree with what the client knows. Keep the new
state before the reply leaves: a client that forgets what it answered could answer twice.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import msgpack
import numpy as np

from agnosticfl.errors import check
from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import draw as draws
from agnosticfl.secagg import primitives, rings
from agnosticfl.secagg.agreement import (
    Member,
    agreed,
    digest_of,
    graph_of,
    is_ring,
    num_holders,
    reckoned_dishonest,
    rings_of,
)
from agnosticfl.secagg.graph import GraphPlan, holders_of, neighbours, quorum, tolerates
from agnosticfl.secagg.messages import (
    Boxes,
    Complaint,
    Confirmed,
    Draw,
    Drawn,
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
    Survivors,
    Unmask,
    kind_of,
    pack,
    parse,
)
from agnosticfl.secagg.primitives import KEY, SEED, CryptoError, random_bytes

Begin = TypeVar("Begin", Join, Draw, Setup)
Timed = TypeVar("Timed", Draw, Setup)
Request = TypeVar("Request", Boxes, Survivors, Unmask)

AHEAD = 10 * 60 * 1000  # milliseconds that the number of a round may be ahead of a client's clock


class State(NamedTuple):
    """What a client remembers within a round; what it keeps of one that is over, `forget` says."""

    waiting_for: str  # kind of the next request; "Setup" once the round is over
    number: int  # of the round
    setup: bytes = b""
    box_private: bytes = b""
    mask_seed: bytes = b""  # of the private key of the pairs' masks
    own_seed: bytes = b""  # of its own mask
    peers: Mapping[int, tuple[bytes, bytes]] = {}  # client -> its box key and mask key
    shares: Mapping[int, bytes] = {}  # client -> shares of its own seed and of its mask seed
    survivors: Sequence[int] = ()
    opened: Mapping[bytes, int] = {}  # run -> the last t whose sum it helped to open
    draw: bytes = b""  # its number for the ring, until it is told
    ring: bytes = b""  # the seed of the ring
    weighty: Sequence[str] = ()  # the domains that have weight in the round


IDLE = State("Setup", 0)


class Work(NamedTuple):
    """What a client has to send."""

    vector: np.ndarray  # the numbers modulo 2³² to be summed, uint32
    weighty: Collection[str] = ()  # the domains that have weight in it, if domains are stated


class Round(NamedTuple):
    """What follows from a round's setup, for one client."""

    setup: Setup
    name: bytes
    ring: bytes
    neighbours: Sequence[int]
    holders: Sequence[int]  # of this client's secrets


def answer(
    member: Member,
    state: State,
    request: bytes,
    now: int,
    work: Callable[[Setup], Work] | None = None,
    sent: bytes = b"",
) -> tuple[State, bytes]:
    """The reply to one request of the server, or `Refused`, which leaves the state as it was.

    Args:
      now: milliseconds since 1970. The number of a round is not far beyond, so that no number can
        keep a client out of all later rounds.
      work: gives what is to be summed; called for `Boxes` only.
      sent: digest of what this client was given to work on: that of the round, or it refuses.
    """
    kind = kind_of(request)
    if kind == "Join":
        return _join(member, state, _begun(member, request, Join))
    if kind == "Draw":
        return _draw(member, state, _timely(_begun(member, request, Draw), now))
    if kind == "Setup":
        return _advertise(member, state, _timely(_begun(member, request, Setup), now))
    if kind == "Over":
        return _end(state, parse(request, Over))
    over = state.waiting_for == "Setup"
    _need(not over, f"{kind} came, but this client has answered all of round {state.number}")
    _need(kind == state.waiting_for, f"{kind} came while waiting for {state.waiting_for}")
    if kind == "Peers":
        return _share(member, state, parse(request, Peers, len(member.agreement.roster)))
    round = _round(member, state)
    if kind == "Boxes":
        # A server that sends one client something else could find its vector in the sum.
        same = sent == round.setup.sent
        _need(same, "what this client was given to work on is not what the others were given")
        return _mask(member, state, round, _parse(request, Boxes, round), work)
    if kind == "Survivors":
        return _confirm(member, state, round, _parse(request, Survivors, round))
    return _reveal(member, state, round, _parse(request, Unmask, round))


def forget(state: State) -> State:
    """What is left of a round that is over or given up: that it was, and no secret of it."""
    return State("Setup", state.number, opened=state.opened)


def dump(state: State) -> bytes:
    """A state as bytes, with its secrets: they must not leave the client."""
    fields = [list(f.items()) if isinstance(f, Mapping) else f for f in state]
    content = cast("bytes", msgpack.packb(fields))
    return _seal(content) + content


def load(data: bytes) -> State:
    """The inverse of `dump`; a state with but one bit changed is none, and `BadInput`."""
    content = data[KEY:]
    check(data[:KEY] == _seal(content), "is damaged, or of another version of this program")
    state = State(*msgpack.unpackb(content, use_list=False))
    return state._replace(
        peers=dict(state.peers), shares=dict(state.shares), opened=dict(state.opened)
    )


def _begun(member: Member, request: bytes, kind: type[Begin]) -> Begin:
    """What begins something: of this run, and signed by the server."""
    message = parse(request, kind, len(member.agreement.roster))
    _need(message.run == member.agreement.run, "the round is of another run")
    with _refusing(f"{kind.__name__} of the server"):
        signed = keys.signed_by_server(message)
        primitives.check_signature(member.agreement.server, message.signature, signed)
    return message


def _timely(message: Timed, now: int) -> Timed:
    ahead = message.number - now
    _need(ahead <= AHEAD, f"round {message.number} is {ahead / 1000:.0f} s ahead of the clock here")
    return message


def _join(member: Member, state: State, asked: Join) -> tuple[State, bytes]:
    theirs, own = dict(asked.terms), member.agreement.terms
    for name in sorted({*theirs, *own}):
        here, there = own.get(name, "unknown"), theirs.get(name, "unknown")
        _need(here == there, f"{name}: {here} here, {there} on the server")
    _need(asked.agreed == agreed(member.agreement), "the roster here is not the server's")
    unsigned = Joined(keys.join_name(asked), member.place, b"")
    signature = member.signing_key.sign(keys.signed_join(unsigned))
    # A round that it was in is over by that, whether it ended or not.
    return forget(state), pack(unsigned._replace(signature=signature))


def _seal(content: bytes) -> bytes:
    return primitives.digest(b"memory", repr(State._fields).encode(), content)


def _draw(member: Member, state: State, asked: Draw) -> tuple[State, bytes]:
    _need(asked.number > state.number, f"round {asked.number} is not after round {state.number}")
    number, name = random_bytes(KEY), draws.draw_name(asked.run, asked.number)
    state = State("Setup", asked.number, opened=state.opened, draw=number)
    drawn = draws.commitment(number, name, member.place)
    return state, pack(Drawn(name, member.place, drawn))


def _end(state: State, over: Over) -> tuple[State, bytes]:
    _need(over.number == state.number, f"round {over.number} is not the one this client is in")
    return forget(state), pack(over)


def _advertise(member: Member, state: State, setup: Setup) -> tuple[State, bytes]:
    agreement, me, cohort = member.agreement, member.place, setup.cohort
    drew = state.draw != b"" and setup.number == state.number
    after = setup.number > state.number or drew
    _need(after, f"round {setup.number} is not after round {state.number}")
    last = state.opened.get(setup.run, 0)
    _need(setup.t > last, f"this client helped to open the sum of round {last} already")
    rounds = agreement.rounds
    _need(setup.t <= rounds, f"round {setup.t} of the algorithm, which has {rounds}")
    _need(setup.agreed == agreed(agreement), "the server's roster or terms are not those here")
    known = max(cohort, default=0) < len(agreement.roster)
    _need(known, "the cohort holds clients that are not registered")
    _need(me in cohort, "this client is not in the cohort")
    fewest = agreement.fewest
    _need(len(cohort) >= fewest, f"the cohort has {len(cohort)} clients, fewer than {fewest}")
    _need_company(member, cohort, "in the cohort")
    plan, n = GraphPlan(setup.neighbours, setup.threshold), len(cohort)
    liars = reckoned_dishonest(agreement, n)
    bears = tolerates(n, plan, liars)
    _need(bears, f"{plan} does not bear {liars} dishonest of {n} clients")
    _need(set(setup.draws) == (set(cohort) if is_ring(setup) else set()), "the draw is not of all")
    _need(setup.short <= setup.length, f"{setup.short} of {setup.length} numbers are short")
    name = digest_of(setup)
    box_private, mask_seed, own_seed = random_bytes(KEY), random_bytes(SEED), random_bytes(SEED)
    unsigned = Keys(
        round=name,
        sender=me,
        box_key=primitives.public_key(box_private),
        mask_key=primitives.public_key(keys.private_key(mask_seed, name)),
        commitment=keys.commitment(own_seed, name, me),
        draw=state.draw if drew and is_ring(setup) else b"",
        signature=b"",
    )
    if is_ring(setup):
        draws.check_number(setup, unsigned)
    signature = member.signing_key.sign(keys.signed_keys(unsigned))
    state = State(
        "Peers", setup.number, pack(setup), box_private, mask_seed, own_seed, opened=state.opened
    )
    return state, pack(unsigned._replace(signature=signature))


def _share(member: Member, state: State, message: Peers) -> tuple[State, bytes]:
    setup = parse(state.setup, Setup)
    name, me = digest_of(setup), member.place
    _need(message.round == name, "Peers is of another round")
    state = state._replace(ring=_ring(member, setup, name, message.drawn))
    round = _round(member, state)
    peers = {
        peer: (sent.box_key, sent.mask_key)
        for peer, sent in _signed(member, name, message.keys, round.neighbours, "a neighbour")
    }
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


def _ring(member: Member, setup: Setup, name: bytes, drawn: Sequence[bytes]) -> bytes:
    """The seed of the ring, from numbers that were all committed to before one was told."""
    if not is_ring(setup):
        return b""
    committee = draws.committee(name, setup.cohort)
    told = dict(_signed(member, name, drawn, committee, "of the draw"))
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
    round: Round,
    message: Boxes,
    work: Callable[[Setup], Work] | None,
) -> tuple[State, bytes]:
    me, setup = member.place, round.setup
    shares: dict[int, bytes] = {}
    closed: list[int] = []
    for peer, box in message.boxes.items():
        _need(peer in state.peers, f"there is a box of client {peer}, who sent no keys")
        context = keys.box_context(setup.run, setup.number, round.name, peer, me)
        try:
            key = keys.box_key(state.box_private, state.peers[peer][0], round.name, peer, me)
            shares[peer] = primitives.unseal(key, box, context)
        except CryptoError:
            closed.append(peer)
    if closed:
        return forget(state), pack(Complaint(round.name, me, closed))
    _need_holders(round, {*shares, me}, "sent shares")
    if work is None:
        raise Refused("this client has no vector to send")
    vector, weighty = work(setup)
    _need_many_holders(member, setup.cohort, weighty, "in the cohort")
    masked = np.array(vector, "<u4")
    expected = f"the round is for {setup.length} numbers"
    _need(masked.shape == (setup.length,), f"the vector has shape {masked.shape}; {expected}")
    primitives.add_mask(masked, keys.own_mask(state.own_seed, round.name), +1)
    private = keys.private_key(state.mask_seed, round.name)
    for peer in message.boxes:
        with _refusing(f"keys of client {peer}"):
            key = keys.pair_mask(private, state.peers[peer][1], round.name, me, peer)
        primitives.add_mask(masked, key, keys.mask_sign(me, peer))
    state = state._replace(waiting_for="Survivors", shares=shares, weighty=tuple(weighty))
    return state, pack(Masked(round.name, me, rings.to_bytes(masked, rings_of(setup))))


def _confirm(member: Member, state: State, round: Round, message: Survivors) -> tuple[State, bytes]:
    alive, fewest = message.alive, member.agreement.fewest
    _need(set(alive) <= set(round.setup.cohort), "a survivor is not in the cohort")
    _need(member.place in alive, "this client sent its vector and is not among the survivors")
    silent = (set(alive) & set(round.neighbours)) - set(state.shares)
    _need(not silent, f"survivor {min(silent, default=0)} sent this client no shares")
    _need(len(alive) >= fewest, f"there are {len(alive)} survivors, fewer than {fewest}")
    _need_holders(round, alive, "survived")
    _need_company(member, alive, "among the survivors")
    _need_many_holders(member, alive, state.weighty, "among the survivors")
    signature = member.signing_key.sign(keys.signed_survivors(round.name, round.ring, alive))
    state = state._replace(waiting_for="Unmask", survivors=alive)
    return state, pack(Confirmed(round.name, member.place, signature))


def _reveal(member: Member, state: State, round: Round, message: Unmask) -> tuple[State, bytes]:
    alive, dead, known = set(message.alive), set(message.dead), set(state.shares)
    both, changed = alive & dead, alive ^ (known & set(state.survivors))
    _need(not both, f"client {min(both, default=0)} is listed both alive and dead")
    _need(not changed, f"client {min(changed, default=0)} is not what the survivors' list said")
    _need(dead == known - alive, "the dead are not the neighbours that did not survive")
    signers, of = {*message.signatures, member.place}, len(round.setup.cohort)
    _need(signers <= set(state.survivors), "a signature is not of a survivor")
    _need_holders(round, signers, "signed the list of survivors")
    # So many that no two lists can have as many: all who unmask have seen the same one.
    least = quorum(of)
    _need(len(signers) >= least, f"{len(signers)} of {of} signed the list, and {least} must")
    signed = keys.signed_survivors(round.name, round.ring, state.survivors)
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
    opened = {**state.opened, round.setup.run: round.setup.t}
    return forget(state._replace(opened=opened)), pack(reply)


def _round(member: Member, state: State) -> Round:
    setup = parse(state.setup, Setup)
    own = neighbours(graph_of(setup, state.ring), member.place)
    return Round(setup, digest_of(setup), state.ring, own, holders_of(member.place, own))


def _parse(data: bytes, kind: type[Request], round: Round) -> Request:
    message = parse(data, kind, len(round.setup.cohort))
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


def _need_company(member: Member, clients: Collection[int], where: str) -> None:
    """The sums of a domain are open to the server: they must not be those of one client alone."""
    agreement = member.agreement
    fewest = agreement.fewest
    own = agreement.holdings[member.place] if agreement.holdings else ()
    for domain in sorted(set(own) - set(member.alone)):
        number = num_holders(agreement, domain, clients)
        _need(
            number >= fewest,
            f"domain {domain!r} has {number} holders {where}, fewer than {fewest}: its sums would"
            " show this client's own; its operator may allow it (--alone)",
        )


def _need_many_holders(
    member: Member, clients: Collection[int], weighty: Collection[str], where: str
) -> None:
    """An α that leaves weight to one client alone would make the sum of updates its own."""
    agreement = member.agreement
    if not agreement.holdings:
        return
    number = sum(not set(weighty).isdisjoint(agreement.holdings[client]) for client in clients)
    fewest, domains = agreement.fewest, ", ".join(map(repr, weighty)) or "no domain"
    _need(
        number >= fewest,
        f"α gives weight to {domains}, with {number} holders {where}, fewer than {fewest}",
    )


@contextlib.contextmanager
def _refusing(what: str) -> Generator[None]:
    try:
        yield
    except CryptoError as error:
        raise Refused(f"{what}: {error}") from None
