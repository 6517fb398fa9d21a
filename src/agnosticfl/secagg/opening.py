# SPDX-License-Identifier: Apache-2.0
"""The server's side of a sum: it takes masked vectors, adds them up, and takes the masks off.

opening = Opening(prepared, t, length)
...                                      # see `stages`
opening.total, opening.survivors, opening.dropped
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn, TypeVar

import numpy as np

from agnosticfl.errors import check
from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import primitives, rings
from agnosticfl.secagg.agreement import digest_of, rings_of
from agnosticfl.secagg.graph import holders_of
from agnosticfl.secagg.holders import beyond_reach, lost, peers
from agnosticfl.secagg.messages import (
    MOST_NUMBERS,
    Boxes,
    Complaint,
    Confirmed,
    Masked,
    Refused,
    Revealed,
    Sum,
    Survivors,
    Unmask,
    kind_of,
    pack,
    parse,
)
from agnosticfl.secagg.preparation import Prepared
from agnosticfl.secagg.stages import Complained, Stage, Stages

Reply = TypeVar("Reply", Masked, Complaint, Confirmed, Revealed)


class Opening(Stages):
    """The sum of a round that is prepared.

    Args:
      t: round of the algorithm, of which clients open one sum only.
      length: numbers of a vector.
      short: how many of them, the first, are added modulo 2^bits, and sent in as many bits.
      sent: digest of what all clients are given to work on.

    Attributes:
      contradictions: pairs of clients of which one has cheated, but who knows which: one cannot
        open the other's box, or one's share of the other's secret is not what others' shares give.
      doubtful: clients of which one has cheated, if a secret cannot be opened.
      survivors: the clients in the sum, once it is known who they are.
      unmasked: the clients that helped to open the sum; they will not do so again for this t.
      total: Σ of their vectors modulo 2³² (or 2^bits), uint32, once it is known.
    """

    def __init__(
        self,
        prepared: Prepared,
        t: int,
        length: int,
        short: int = 0,
        bits: int = 32,
        sent: bytes = b"",
    ) -> None:
        check(
            1 <= length <= MOST_NUMBERS,
            f"a secure sum of {length} numbers; it must be of 1 to {MOST_NUMBERS}",
        )
        check(
            0 <= short <= length and 1 <= bits <= 32,
            f"{short} of {length} numbers in {bits} bits; at most all, in 1 to 32",
        )
        stages = (
            Stage("masked vectors", self._take_masked, self._enough_vectors, self._send_survivors),
            Stage("survivors", self._take_confirmed, self._enough_signed, self._send_unmask),
            Stage("unmasking", self._take_revealed, self._enough_shares, self._finish),
        )
        super().__init__(prepared.setup, prepared.holders, prepared.agreement.fewest, stages)
        round = digest_of(prepared.setup)
        asked = Sum(round, t, length, short, bits, sent)
        asked = asked._replace(signature=prepared.key.sign(keys.signed_by_server(asked)))
        self._round, self._name, self._rings = round, keys.sum_name(asked), rings_of(asked)
        self._roster, self._ring = prepared.agreement.roster, prepared.ring
        self._keys, self._shared = prepared.keys, set(prepared.boxes)
        self.length = length
        self._sum = np.zeros(length, "<u4")
        self.contradictions: set[tuple[int, int]] = set()
        self.doubtful: set[int] = set()
        self.survivors: Sequence[int] = ()
        self.unmasked: Collection[int] = ()
        self.total: np.ndarray | None = None
        self.requests = {
            client: pack(Boxes(round, boxes, pack(asked)))
            for client, boxes in prepared.boxes.items()
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
        raise Complained(f"it cannot open the boxes of {', '.join(map(str, accused))}")

    def _enough_vectors(self, clients: Collection[int]) -> bool:
        needed = [*clients, *lost(self._holders, self._shared, clients)]
        return len(clients) >= self._quorum and not beyond_reach(self._holders, needed, clients)

    def _send_survivors(self, replies: Mapping[int, None]) -> Mapping[int, bytes]:
        self.survivors = list(replies)
        self._check_enough(replies, "sent their vectors")
        self._check_holders(set(replies), "survived")
        return dict.fromkeys(self.survivors, pack(Survivors(self._name, self.survivors)))

    def _take_confirmed(self, client: int, reply: bytes) -> bytes:
        signature = self._parse(client, reply, Confirmed).signature
        signed = keys.signed_survivors(self._name, self._ring, self.survivors)
        primitives.check_signature(self._roster[client], signature, signed)
        return signature

    def _enough_signed(self, clients: Collection[int]) -> bool:
        needed = [*self.survivors, *self._lost()]
        return len(clients) >= self._quorum and not beyond_reach(self._holders, needed, clients)

    def _send_unmask(self, replies: Mapping[int, bytes]) -> Mapping[int, bytes]:
        least = self._quorum
        if len(replies) < least:
            raise self._abandoned(f"{len(replies)} signed the list, and {least} must")
        self._check_holders(set(replies), "signed")

        def request(client: int) -> Unmask:
            alive, dead = self._asked_of(client)
            witnesses = self._witnesses(client, list(replies))
            return Unmask(self._name, alive, dead, {c: replies[c] for c in witnesses})

        return {client: pack(request(client)) for client in replies}

    def _asked_of(self, client: int) -> tuple[list[int], list[int]]:
        """Of which neighbours it is asked for which share: alive, dead."""
        alive = set(self.survivors)
        groups = (alive, self._shared - alive)
        one, other = (peers(self._holders, client, group) for group in groups)
        return one, other

    def _witnesses(self, client: int, signed: Sequence[int]) -> list[int]:
        """Its neighbours who signed, and as many more as make the quorum without itself."""
        near = peers(self._holders, client, signed)
        far = [c for c in signed if c != client and c not in set(near)]
        return sorted([*near, *far[: max(0, self._quorum - 1 - len(near))]])

    def _take_revealed(self, client: int, reply: bytes) -> Revealed:
        sent = self._parse(client, reply, Revealed)
        if (list(sent.alive), list(sent.dead)) != self._asked_of(client):
            raise Refused("the shares are not those that were asked for")
        if not self._is_own_seed(client, sent.own_seed):
            raise Refused("the seed of its own mask is not the one it committed to")
        return sent

    def _enough_shares(self, clients: Collection[int]) -> bool:
        """Who replies tells its own seed; of the others shares are needed."""
        needed = [*(c for c in self.survivors if c not in clients), *self._lost()]
        return not beyond_reach(self._holders, needed, clients)

    def _finish(self, replies: Mapping[int, Revealed]) -> Mapping[int, bytes]:
        self.unmasked = set(replies)
        for client in self.survivors:
            shares = {h: sent.alive[client] for h, sent in replies.items() if client in sent.alive}
            # Shares are for the seeds of those who were lost after they had sent their vector.
            own = replies[client].own_seed if client in replies else None
            seed = own or self._recover_seed(client, shares, self._is_own_seed)
            primitives.add_mask(self._sum, keys.own_mask(seed, self._name), -1)
        for client in self._lost():
            shares = {h: sent.dead[client] for h, sent in replies.items() if client in sent.dead}
            seed = self._recover_seed(client, shares, self._is_mask_seed)
            private = keys.private_key(seed, self._round)
            for other in peers(self._holders, client, self.survivors):
                public = self._keys[other].mask_key
                key = keys.pair_mask(private, public, self._name, client, other)
                # What the other one put on is taken off.
                primitives.add_mask(self._sum, key, -keys.mask_sign(other, client))
        self.total = rings.reduced(self._sum, self._rings)
        return {}

    def _lost(self) -> list[int]:
        return lost(self._holders, self._shared, set(self.survivors))

    def _recover_seed(
        self, client: int, shares: Mapping[int, bytes], is_right: Callable[[int, bytes], bool]
    ) -> bytes:
        """A client's seed from shares of it; whoever's shares do not fit is written down."""
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
        return keys.commitment(seed, self._round, client) == self._keys[client].commitment

    def _is_mask_seed(self, client: int, seed: bytes) -> bool:
        private = keys.private_key(seed, self._round)
        return primitives.public_key(private) == self._keys[client].mask_key

    def _check_holders(self, clients: Collection[int], what: str) -> None:
        """Every secret that will be needed must be held by t clients who did their part."""
        needed, least = [*self.survivors, *self._lost()], self._setup.threshold
        if found := beyond_reach(self._holders, needed, clients):
            client, held = found
            raise self._abandoned(
                f"{held} holders of client {client}'s secrets {what}, and {least} must"
            )

    def _parse(self, client: int, reply: bytes, kind: type[Reply]) -> Reply:
        vector = rings.num_bytes(self._rings)
        message = parse(reply, kind, len(self._setup.cohort), vector)
        if message.sum != self._name:
            raise Refused(f"{kind.__name__} is of another sum")
        if message.sender != client:
            raise Refused(f"{kind.__name__} says it is of client {message.sender}")
        return message


def _not_fitting(seed: bytes, shares: Mapping[int, bytes], right: Mapping[int, bytes]) -> list[int]:
    """Whose shares do not go with t shares that are right.

    Either the holder tells another share than it was dealt, or it was dealt a wrong one.
    """
    _, *others = right.items()
    rest = {place: share for place, share in shares.items() if place not in right}
    return [
        p for p, share in rest.items() if primitives.combine({**dict(others), p: share}) != seed
    ]
