# SPDX-License-Identifier: Apache-2.0
"""The server's side of a secure round: it passes messages on, adds up, and takes the masks off.

    server = Server(agreement, key, number, cohort, length)
    while server.requests:
        for client, reply in ...:            # any subset of those asked, in any order
            server.receive(client, reply)
        server.advance()                     # or Refused: too few are left for a sum
    server.total, server.survivors, server.dropped

Replies are taken one at a time, so no more than one masked vector is in memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from agnosticfl.errors import check
from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import draw as draws
from agnosticfl.secagg import primitives, rings
from agnosticfl.secagg.agreement import (
    Agreement,
    agreed,
    check_agreement,
    digest_of,
    graph_of,
    is_ring,
    plan_of,
    rings_of,
)
from agnosticfl.secagg.graph import holders_of, neighbours, quorum
from agnosticfl.secagg.holders import Holders, beyond_reach, connected, lost, peers
from agnosticfl.secagg.messages import (
    MOST_NUMBERS,
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
from agnosticfl.secagg.primitives import CryptoError, Ed25519PrivateKey

Reply = TypeVar("Reply", Drawn, Keys, Shares, Masked, Complaint, Confirmed, Revealed)


def question(agreement: Agreement, key: Ed25519PrivateKey, token: bytes) -> Join:
    """What clients are asked before a round: who takes part, and whether all is as agreed."""
    terms = tuple(sorted(agreement.terms.items()))
    asked = Join(agreement.run, token, agreed(agreement), terms, b"")
    return asked._replace(signature=key.sign(keys.signed_by_server(asked)))


def joined(agreement: Agreement, asked: Join, reply: bytes) -> int:
    """The place of the client that answers `asked`; `Refused` if it is not a client's answer."""
    answer = parse(reply, Joined)
    if answer.round != keys.join_name(asked):
        raise Refused("it answers another question")
    if answer.sender >= len(agreement.roster):
        raise Refused(f"it says that it is client {answer.sender}, who is not in the roster")
    try:
        key = agreement.roster[answer.sender]
        primitives.check_signature(key, answer.signature, keys.signed_join(answer))
    except CryptoError as error:
        raise Refused(f"it says that it is client {answer.sender}, but {error}") from None
    return answer.sender


class _Complained(Exception):
    """A client says that it cannot go on, because of others."""


class Server:
    """One secure sum over a cohort.

    Args:
      agreement: of the federation.
      key: of the server, whose public half the agreement has.
      number: of the secure round.
      cohort: places in the roster.
      length: numbers of a vector.
      short: how many of them, the first, are added modulo 2^bits, and sent in as many bits.
      sent: digest of what all clients are given to work on.
      t: round of the algorithm, of which clients open one sum only; by default `number`.

    Attributes:
      requests: what to send to whom now; empty once the sum is there.
      dropped: clients that are out of the round, and why.
      cheated: clients that sent what no honest client sends, and what it was.
      contradictions: pairs of clients of which one has cheated, but who knows which: one cannot
        open the other's box, or one's share of the other's secret is not what others' shares give.
      doubtful: clients of which one has cheated, if a secret cannot be opened.
      survivors: the clients in the sum, once it is known who they are.
      unmasked: the clients that helped to open the sum; they will not do so again for this t.
      total: Σ of their vectors modulo 2³² (or 2^bits), uint32, once it is known.
    """

    def __init__(
        self,
        agreement: Agreement,
        key: Ed25519PrivateKey,
        number: int,
        cohort: Collection[int],
        length: int,
        short: int = 0,
        bits: int = 32,
        sent: bytes = b"",
        t: int | None = None,
    ) -> None:
        check_agreement(agreement)
        members = tuple(sorted(cohort))
        check(
            len(members) >= agreement.fewest and len(set(members)) == len(members),
            f"a cohort of {len(members)} clients; it must be {agreement.fewest} or more, each once",
        )
        check(
            members[0] >= 0 and members[-1] < len(agreement.roster),
            f"the cohort names clients up to {members[-1]}; the roster has {len(agreement.roster)}",
        )
        check(number >= 1, f"number of the secure round is {number}; it must be 1 or more")
        check(
            1 <= length <= MOST_NUMBERS,
            f"a secure sum of {length} numbers; it must be of 1 to {MOST_NUMBERS}",
        )
        check(
            0 <= short <= length and 1 <= bits <= 32,
            f"{short} of {length} numbers in {bits} bits; at most all, in 1 to 32",
        )
        self._agreement, self._key, self._ring = agreement, key, b""
        self._setup = Setup(
            agreement.run,
            number,
            number if t is None else t,
            agreed(agreement),
            members,
            *plan_of(agreement, len(members)),
            length,
            short,
            bits,
            sent,
        )
        self._rings = rings_of(self._setup)
        self._replies: dict[int, Any] = {}
        self._name = draws.draw_name(agreement.run, number)
        self._stage = 0
        self._keys: Mapping[int, Keys] = {}
        self._holders = Holders({}, self._setup.threshold)  # until it is known who stands where
        self._shared: set[int] = set()  # those who sent shares
        self._sum = np.zeros(length, "<u4")
        self.dropped: dict[int, str] = {}
        self.cheated: dict[int, str] = {}
        self.contradictions: set[tuple[int, int]] = set()
        self.doubtful: set[int] = set()
        self.survivors: Sequence[int] = ()
        self.unmasked: Collection[int] = ()
        self.total: np.ndarray | None = None
        draw = Draw(agreement.run, number, b"")
        draw = draw._replace(signature=key.sign(keys.signed_by_server(draw)))
        self.requests: Mapping[int, bytes] = dict.fromkeys(members, pack(draw))
        if not is_ring(self._setup):  # there is nothing to draw
            self._stage, self.requests = 1, self._begin()

    @property
    def stage(self) -> str:
        """What the server is waiting for."""
        return self._stages[self._stage][0]

    @property
    def over(self) -> bytes:
        """What clients of a round that is abandoned are told, so that they forget its secrets."""
        return pack(Over(self._setup.number))

    def receive(self, client: int, reply: bytes) -> None:
        """Takes a client's reply to its last request; one that cannot be used drops the client."""
        _, take, _ = self._stages[self._stage]
        if client not in self.requests or client in self._replies or client in self.dropped:
            return  # not asked, late, or said before
        try:
            self._replies[client] = take(client, reply)
        except _Complained as error:
            self.dropped[client] = f"{self.stage}: {error}"
        except (Refused, CryptoError) as error:
            self.dropped[client] = self.cheated[client] = f"{self.stage}: {error}"

    def refuse(self, client: int, reason: str) -> None:
        """Notes that a client did not answer, and why."""
        if client in self.requests and client not in self._replies:
            self.dropped.setdefault(client, f"{self.stage}: {reason}")

    def advance(self) -> None:
        """Goes on with those who replied; `Refused` if they are too few."""
        check(bool(self.requests), "the secure round is over")
        for client in self.requests:
            self.refuse(client, "no reply")
        _, _, go_on = self._stages[self._stage]
        replies, self._replies = dict(sorted(self._replies.items())), {}
        self.requests = go_on(replies)
        self._stage += 1

    # One stage after the other: its name, what is done with a reply, and with all of them.

    @property
    def _stages(self) -> Sequence[tuple[str, Callable[[int, bytes], Any], Callable[[Any], Any]]]:
        return (
            ("draws", self._take_draw, self._send_setup),
            ("keys", self._take_keys, self._send_peers),
            ("shares", self._take_shares, self._send_boxes),
            ("masked vectors", self._take_masked, self._send_survivors),
            ("survivors", self._take_confirmed, self._send_unmask),
            ("unmasking", self._take_revealed, self._finish),
            ("done", lambda _client, _reply: None, lambda _replies: {}),
        )

    def _take_draw(self, client: int, reply: bytes) -> bytes:
        return self._parse(client, reply, Drawn).commitment

    def _send_setup(self, replies: Mapping[int, bytes]) -> Mapping[int, bytes]:
        self._check_enough(replies, "took part in the draw")
        neighbours, threshold = plan_of(self._agreement, len(replies))
        self._setup = self._setup._replace(
            cohort=tuple(replies), neighbours=neighbours, threshold=threshold
        )
        if is_ring(self._setup):
            self._setup = self._setup._replace(draws=replies)
        return self._begin()

    def _begin(self) -> Mapping[int, bytes]:
        signature = self._key.sign(keys.signed_by_server(self._setup))
        self._setup = self._setup._replace(signature=signature)
        self._name = digest_of(self._setup)
        return dict.fromkeys(self._setup.cohort, pack(self._setup))

    def _take_keys(self, client: int, reply: bytes) -> Keys:
        sent = self._parse(client, reply, Keys)
        key = self._agreement.roster[client]
        primitives.check_signature(key, sent.signature, keys.signed_keys(sent))
        for public in (sent.box_key, sent.mask_key):
            primitives.agree(primitives.random_bytes(primitives.KEY), public)
        if is_ring(self._setup):
            draws.check_number(self._setup, sent)
        return sent

    def _send_peers(self, replies: Mapping[int, Keys]) -> Mapping[int, bytes]:
        packed = {client: pack(sent) for client, sent in replies.items()}
        drawn = self._draw_ring(replies)
        graph = graph_of(self._setup, self._ring)
        near = {client: neighbours(graph, client) for client in self._setup.cohort}
        self._holders = Holders(near, self._setup.threshold)
        self._keys = {client: replies[client] for client in self._connected(replies)}

        def request(client: int) -> Peers:
            near = peers(self._holders, client, self._keys)
            return Peers(self._name, [packed[n] for n in near], [packed[d] for d in drawn])

        return {client: pack(request(client)) for client in self._keys}

    def _draw_ring(self, replies: Mapping[int, Keys]) -> list[int]:
        """Those whose numbers make the ring, which is made of them."""
        if not is_ring(self._setup):
            return []
        committee = draws.committee(self._name, self._setup.cohort)
        told = {client: replies[client] for client in committee if client in replies}
        try:
            self._ring = draws.ring_of(self._name, told)
        except Refused as error:
            raise self._abandoned(str(error)) from None
        return list(told)

    def _take_shares(self, client: int, reply: bytes) -> Mapping[int, bytes]:
        boxes = self._parse(client, reply, Shares).boxes
        if set(boxes) != set(peers(self._holders, client, self._keys)):
            raise Refused("the boxes are not for its neighbours")
        return boxes

    def _send_boxes(self, replies: Mapping[int, Mapping[int, bytes]]) -> Mapping[int, bytes]:
        self._shared = self._connected(replies)
        return {
            client: pack(
                Boxes(
                    self._name,
                    {n: replies[n][client] for n in peers(self._holders, client, self._shared)},
                )
            )
            for client in self._shared
        }

    def _take_masked(self, client: int, reply: bytes) -> None:
        if kind_of(reply) == Complaint.__name__:
            self._complain(client, self._parse(client, reply, Complaint).accused)
        vector = self._parse(client, reply, Masked).vector
        expected = rings.num_bytes(self._rings)
        if len(vector) != expected:
            raise Refused(f"the vector has {len(vector)} bytes, not {expected}")
        self._sum += rings.from_bytes(vector, self._rings)

    def _complain(self, client: int, accused: Sequence[int]) -> NoReturn:
        if not accused or not set(accused) <= set(peers(self._holders, client, self._shared)):
            raise Refused("it complains of boxes that it was not given")
        self.contradictions |= {(client, other) for other in accused}
        raise _Complained(f"it cannot open the boxes of {', '.join(map(str, accused))}")

    def _send_survivors(self, replies: Mapping[int, None]) -> Mapping[int, bytes]:
        self.survivors = list(replies)
        self._check_enough(replies, "sent their vectors")
        self._check_holders(set(replies), "survived")
        return dict.fromkeys(self.survivors, pack(Survivors(self._name, self.survivors)))

    def _take_confirmed(self, client: int, reply: bytes) -> bytes:
        signature = self._parse(client, reply, Confirmed).signature
        signed = keys.signed_survivors(self._name, self._ring, self.survivors)
        primitives.check_signature(self._agreement.roster[client], signature, signed)
        return signature

    def _send_unmask(self, replies: Mapping[int, bytes]) -> Mapping[int, bytes]:
        least = quorum(len(self._setup.cohort))
        if len(replies) < least:
            raise self._abandoned(f"{len(replies)} signed the list, and {least} must")
        self._check_holders(set(replies), "signed")
        alive = set(self.survivors)

        def request(client: int) -> Unmask:
            return Unmask(
                self._name,
                alive=peers(self._holders, client, alive),
                dead=peers(self._holders, client, self._shared - alive),
                signatures={c: replies[c] for c in self._witnesses(client, list(replies))},
            )

        return {client: pack(request(client)) for client in replies}

    def _witnesses(self, client: int, signed: Sequence[int]) -> list[int]:
        """Its neighbours who signed, and as many more as make the quorum without itself."""
        near = peers(self._holders, client, signed)
        far = [c for c in signed if c != client and c not in set(near)]
        return sorted([*near, *far[: max(0, quorum(len(self._setup.cohort)) - 1 - len(near))]])

    def _take_revealed(self, client: int, reply: bytes) -> Revealed:
        sent = self._parse(client, reply, Revealed)
        alive = set(self.survivors)
        asked = (
            peers(self._holders, client, alive),
            peers(self._holders, client, self._shared - alive),
        )
        if (list(sent.alive), list(sent.dead)) != asked:
            raise Refused("the shares are not those that were asked for")
        if not self._is_own_seed(client, sent.own_seed):
            raise Refused("the seed of its own mask is not the one it committed to")
        return sent

    def _finish(self, replies: Mapping[int, Revealed]) -> Mapping[int, bytes]:
        self.unmasked = set(replies)
        for client in self.survivors:
            shares = {h: sent.alive[client] for h, sent in replies.items() if client in sent.alive}
            # Shares are for the seeds of those who were lost after they had sent their vector.
            own = replies[client].own_seed if client in replies else None
            seed = own or self._seed(client, shares, self._is_own_seed)
            primitives.add_mask(self._sum, keys.own_mask(seed, self._name), -1)
        for client in self._lost():
            shares = {h: sent.dead[client] for h, sent in replies.items() if client in sent.dead}
            private = keys.private_key(self._seed(client, shares, self._is_mask_seed), self._name)
            for other in peers(
                self._holders, client, self.survivors
            ):  # what it put on is taken off
                public = self._keys[other].mask_key
                key = keys.pair_mask(private, public, self._name, client, other)
                primitives.add_mask(self._sum, key, -keys.mask_sign(other, client))
        self.total = rings.reduced(self._sum, self._rings)
        return {}

    def _lost(self) -> list[int]:
        return lost(self._holders, self._shared, set(self.survivors))

    def _seed(
        self, client: int, shares: Mapping[int, bytes], is_right: Callable[[int, bytes], bool]
    ) -> bytes:
        threshold = self._setup.threshold
        order = holders_of(client, self._holders.neighbours[client])
        places = {order.index(holder): share for holder, share in shares.items()}
        if len(places) < threshold:
            raise self._abandoned(f"{len(places)} shares of client {client}, not {threshold}")
        around = [*places.items()] * 2
        for start in range(len(places)):  # one holder that lies is in some of these, not in all
            right = dict(around[start : start + threshold])
            seed = primitives.combine(right)
            if is_right(client, seed):
                wrong = _not_fitting(seed, places, right) if start > 0 else []
                self.contradictions |= {(client, order[place]) for place in wrong}
                return seed
        self.doubtful |= {client, *shares}
        raise self._abandoned(f"the shares of client {client} do not give its secret")

    def _is_own_seed(self, client: int, seed: bytes) -> bool:
        return keys.commitment(seed, self._name, client) == self._keys[client].commitment

    def _is_mask_seed(self, client: int, seed: bytes) -> bool:
        private = keys.private_key(seed, self._name)
        return primitives.public_key(private) == self._keys[client].mask_key

    def _parse(self, client: int, reply: bytes, kind: type[Reply]) -> Reply:
        vector = rings.num_bytes(self._rings)
        message = parse(reply, kind, len(self._setup.cohort), vector)
        if message.round != self._name:
            raise Refused(f"{kind.__name__} is of another round")
        if message.sender != client:
            raise Refused(f"{kind.__name__} says it is of client {message.sender}")
        return message

    def _connected(self, clients: Collection[int]) -> set[int]:
        """Those of `clients` with enough holders among them; the others are dropped."""
        left = connected(self._holders, clients)
        for client in set(clients) - left:
            self.dropped[client] = f"{self.stage}: too few of its neighbours are left"
        self._check_enough(left, "have enough neighbours")
        return left

    def _check_enough(self, clients: Collection[int], what: str) -> None:
        fewest = self._agreement.fewest
        if len(clients) < fewest:
            raise self._abandoned(f"{len(clients)} clients {what}, not {fewest} or more")

    def _check_holders(self, clients: Collection[int], what: str) -> None:
        """Every secret that will be needed must be held by t clients who did their part."""
        needed, least = [*self.survivors, *self._lost()], self._setup.threshold
        if found := beyond_reach(self._holders, needed, clients):
            client, held = found
            raise self._abandoned(
                f"{held} holders of client {client}'s secrets {what}, and {least} must"
            )

    def _abandoned(self, why: str) -> Refused:
        return Refused(f"round {self._setup.number} is abandoned at {self.stage}: {why}")


def _not_fitting(seed: bytes, shares: Mapping[int, bytes], right: Mapping[int, bytes]) -> list[int]:
    """Whose shares do not go with t shares that are right.

    Either the holder tells another share than it was dealt, or it was dealt a wrong one.
    """
    _, *others = right.items()
    rest = {place: share for place, share in shares.items() if place not in right}
    return [
        p for p, share in rest.items() if primitives.combine({**dict(others), p: share}) != seed
    ]
