# SPDX-License-Identifier: Apache-2.0
"""A server with other code than ours, and clients that work for it, against the real client code.

It shows two groups of clients two lists of survivors: to the one group the victim is alive, so that
the seed of its own mask is opened, to the other dead, so that its key is, or those of the clients
that it shares masks with.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import primitives
from agnosticfl.secagg.agreement import graph_of
from agnosticfl.secagg.graph import holders_of
from agnosticfl.secagg.messages import (
    Boxes,
    Confirmed,
    Keys,
    Masked,
    Refused,
    Revealed,
    Survivors,
    Unmask,
    pack,
    parse,
)
from agnosticfl.secagg.primitives import SEED
from tests.secagg.federation import Play


class Adversary:
    """Plays a round to the masked vectors, and then says what it likes to whom it likes.

    Args:
      play: a round that has not begun.
      liars: clients that work for the server: it has their states and signing keys.
      shown: client -> the only ones whose boxes it is given.
    """

    def __init__(
        self, play: Play, liars: Collection[int], shown: Mapping[int, Collection[int]] | None = None
    ) -> None:
        self.play, self.liars = play, set(liars)
        play.until("masked vectors")
        requests = dict(play.server.requests)
        for client, peers in (shown or {}).items():
            boxes = parse(requests[client], Boxes)
            kept = {sender: box for sender, box in boxes.boxes.items() if sender in peers}
            requests[client] = pack(boxes._replace(boxes=kept))
        play.server.requests = requests
        play.stage()
        assert not play.refusals
        self.sum, self.round = play.server.sum, play.server.round
        self.public = {c: parse(reply, Keys) for c, reply in play.replies["keys"].items()}
        self.near = play.server.prepared.holders.neighbours
        self.revealed: dict[int, Revealed] = {}

    def ask(self, group: Collection[int], alive: Sequence[int]) -> None:
        """Shows `group` one list of survivors, and asks all who signed it to unmask."""
        alive = tuple(sorted(alive))
        signed: dict[int, bytes] = {}
        for client in sorted(set(group) - self.liars):
            reply = self._answer(client, pack(Survivors(self.sum, alive)))
            if reply is not None:
                signed[client] = parse(reply, Confirmed).signature
        words = keys.signed_survivors(self.sum, play_ring(self.play), alive)
        for liar in self.liars:  # they sign any list
            signed[liar] = self.play.members[liar].signing_key.sign(words)
        for client in sorted(set(signed) - self.liars):
            known = self.play.part(client).shares
            others = {c: s for c, s in signed.items() if c != client and c in alive}
            request = Unmask(
                self.sum,
                alive=[c for c in sorted(known) if c in alive],
                dead=[c for c in sorted(known) if c not in alive],
                signatures=others,
            )
            reply = self._answer(client, pack(request))
            if reply is not None:
                self.revealed[client] = parse(reply, Revealed)

    def vector_of(self, victim: int) -> np.ndarray | None:
        """What it can compute of a client's vector alone; None if it lacks a seed."""
        play = self.play
        own = self._own_seed(victim)
        if own is None:
            return None
        vector = np.frombuffer(
            parse(play.replies["masked vectors"][victim], Masked).vector, "<u4"
        ).copy()
        primitives.add_mask(vector, keys.own_mask(own, self.sum), -1)
        mine = self._mask_seed(victim)
        for peer in self._shared_masks(victim):
            theirs = mine or self._mask_seed(peer)
            if theirs is None:
                return None
            one, other = (victim, peer) if mine else (peer, victim)
            private = keys.private_key(theirs, self.round)
            key = keys.pair_mask(private, self.public[other].mask_key, self.sum, one, other)
            primitives.add_mask(vector, key, -keys.mask_sign(victim, peer))
        return vector

    def _shared_masks(self, victim: int) -> list[int]:
        """The clients whose boxes the victim was given: the server knows, it sent them."""
        return sorted(parse(self.play.requests["masked vectors"][victim], Boxes).boxes)

    def _own_seed(self, client: int) -> bytes | None:
        if client in self.revealed:
            return self.revealed[client].own_seed
        return self._combined(client, "alive")

    def _mask_seed(self, client: int) -> bytes | None:
        if client in self.liars:
            return self.play.part(client).mask_seed
        return self._combined(client, "dead")

    def _combined(self, client: int, about: str) -> bytes | None:
        """The seed from the shares of liars and of those who were made to reveal theirs."""
        shares: dict[int, bytes] = {}
        place = slice(0, SEED) if about == "alive" else slice(SEED, 2 * SEED)
        for holder in self.near[client]:
            if holder in self.liars:
                held = self.play.part(holder).shares.get(client)
                shares |= {} if held is None else {holder: held[place]}
            elif holder in self.revealed and client in getattr(self.revealed[holder], about):
                shares[holder] = getattr(self.revealed[holder], about)[client]
        threshold, order = self.play.server.setup.threshold, holders_of(client, self.near[client])
        if len(shares) < threshold:
            return None
        places = {order.index(holder): share for holder, share in shares.items()}
        return primitives.combine(dict([*places.items()][:threshold]))

    def _answer(self, client: int, request: bytes) -> bytes | None:
        try:
            return self.play.answer(client, request)
        except Refused:
            return None


def play_ring(play: Play) -> bytes:
    """The seed of the ring, which all know."""
    return play.server.ring


def two_lists(play: Play, victim: int, liars: Collection[int]) -> Adversary:
    """All are neighbours: as few as can answer are told that the victim lives, all others not."""
    everyone = range(len(play.members))
    adversary = Adversary(play, liars)
    honest = [c for c in everyone if c not in liars and c != victim]
    enough = play.server.setup.threshold - len(set(liars)) - 1
    adversary.ask([victim, *honest[:enough]], everyone)
    adversary.ask(honest[enough:], [c for c in everyone if c != victim])
    return adversary


def far_witnesses(play: Play, victim: int) -> Adversary:
    """On the ring, without a liar: the victim's list is signed by those who stand far from it.

    They have so many holders out of the victim's sight that these can be told that they are dead;
    of the victim's masks none is then left.
    """
    play.until("masked vectors")
    order = graph_of(play.server.setup, play_ring(play)).order
    near = play.server.prepared.holders.neighbours
    threshold, size = play.server.setup.threshold, len(order)
    here = order.index(victim)

    def distance(client: int) -> int:
        steps = abs(order.index(client) - here)
        return min(steps, size - steps)

    witnesses = sorted(near[victim], key=distance)[-(threshold - 1) :]
    group = {victim, *witnesses}
    adversary = Adversary(play, (), {victim: witnesses})
    adversary.ask(group, [*group, *(c for c in order if c not in near[victim] and c != victim)])
    adversary.ask(set(order) - group, [c for c in order if c not in group])
    return adversary
