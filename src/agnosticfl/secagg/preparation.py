# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round before it is known what is summed: keys and shares change hands.

    preparation = Preparation(agreement, key, number, drawn)
    ...                                      # see `stages`
    preparation.prepared                     # is what a sum needs (`opening`)

It can be done while the sum of another round is being opened.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

from agnosticfl.errors import check
from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import draw as draws
from agnosticfl.secagg import primitives
from agnosticfl.secagg.agreement import (
    Agreement,
    agreed,
    check_agreement,
    digest_of,
    graph_of,
    is_ring,
    plan_of,
)
from agnosticfl.secagg.graph import neighbours
from agnosticfl.secagg.holders import Holders, connected, peers
from agnosticfl.secagg.messages import Keys, Peers, Refused, Setup, Shares, pack, parse
from agnosticfl.secagg.primitives import Ed25519PrivateKey
from agnosticfl.secagg.stages import Stage, Stages

Reply = TypeVar("Reply", Keys, Shares)


class Prepared(NamedTuple):
    """A round that is ready for its sum."""

    agreement: Agreement
    key: Ed25519PrivateKey  # of the server
    setup: Setup
    ring: bytes  # the seed of the ring, if there is one
    keys: Mapping[int, Keys]
    holders: Holders
    boxes: Mapping[int, Mapping[int, bytes]]  # receiver -> sender -> box


class Preparation(Stages):
    """Keys and shares of a cohort.

    Args:
      agreement: of the federation.
      key: of the server, whose public half the agreement has.
      number: of the round.
      drawn: place in the roster -> commitment to its number of the draw, of all that joined.

    Attributes:
      prepared: the round, once there is nothing left to ask.
    """

    def __init__(
        self,
        agreement: Agreement,
        key: Ed25519PrivateKey,
        number: int,
        drawn: Mapping[int, bytes],
    ) -> None:
        check_agreement(agreement)
        cohort = tuple(sorted(drawn))
        check(
            len(cohort) >= agreement.fewest,
            f"a cohort of {len(cohort)} clients; it must be {agreement.fewest} or more",
        )
        check(
            cohort[0] >= 0 and cohort[-1] < len(agreement.roster),
            f"the cohort names clients up to {cohort[-1]}; the roster has {len(agreement.roster)}",
        )
        check(number >= 1, f"number of the secure round is {number}; it must be 1 or more")
        plan = plan_of(agreement, len(cohort))
        setup = Setup(agreement.run, number, agreed(agreement), cohort, *plan)
        if is_ring(setup):
            setup = setup._replace(draws={client: drawn[client] for client in cohort})
        setup = setup._replace(signature=key.sign(keys.signed_by_server(setup)))
        unknown = Holders({}, setup.threshold)  # until it is known who stands where
        stages = (
            Stage("keys", self._take_keys, self._enough_keys, self._send_peers),
            Stage("shares", self._take_shares, self._enough_shares, self._finish),
        )
        super().__init__(setup, unknown, agreement.fewest, stages)
        self._agreement, self._key, self._name, self._ring = agreement, key, digest_of(setup), b""
        self._keys: Mapping[int, Keys] = {}
        self.prepared: Prepared | None = None
        self.requests = dict.fromkeys(cohort, pack(setup))

    def _take_keys(self, client: int, reply: bytes) -> Keys:
        sent = self._parse(client, reply, Keys)
        key = self._agreement.roster[client]
        primitives.check_signature(key, sent.signature, keys.signed_keys(sent))
        for public in (sent.box_key, sent.mask_key):
            primitives.agree(primitives.random_bytes(primitives.KEY), public)
        if is_ring(self._setup):
            draws.check_number(self._setup, sent)
        return sent

    def _enough_keys(self, clients: Collection[int]) -> bool:
        drawn = not is_ring(self._setup) or draws.suffice(self._name, self._setup.cohort, clients)
        return drawn and len(clients) >= self._quorum

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

    def _enough_shares(self, clients: Collection[int]) -> bool:
        return len(connected(self._holders, clients)) >= self._quorum

    def _finish(self, replies: Mapping[int, Mapping[int, bytes]]) -> Mapping[int, bytes]:
        shared = self._connected(replies)
        boxes = {
            client: {n: replies[n][client] for n in peers(self._holders, client, shared)}
            for client in sorted(shared)
        }
        self.prepared = Prepared(
            self._agreement, self._key, self._setup, self._ring, self._keys, self._holders, boxes
        )
        return {}

    def _parse(self, client: int, reply: bytes, kind: type[Reply]) -> Reply:
        message = parse(reply, kind, len(self._setup.cohort))
        if message.round != self._name:
            raise Refused(f"{kind.__name__} is of another round")
        if message.sender != client:
            raise Refused(f"{kind.__name__} says it is of client {message.sender}")
        return message
