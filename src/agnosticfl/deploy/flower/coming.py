# SPDX-License-Identifier: Apache-2.0
"""A secure round that is being prepared, over Flower's nodes: who joins, their keys, their shares.

    coming = Coming(agreement, key, number, nodes, admit)
    while coming.requests:                   # node -> bytes
        coming.receive(node, reply)          # any of those asked, in any order
        coming.advance()                     # or Refused: too few are left
    coming.prepared                          # is ready for its sum

Its messages go out on their own, or with those of the round before.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from flwr.app import MessageType

from agnosticfl.secagg.agreement import Agreement
from agnosticfl.secagg.joining import Joining, joining, question
from agnosticfl.secagg.messages import Over, Refused, pack
from agnosticfl.secagg.preparation import Preparation, Prepared
from agnosticfl.secagg.primitives import Ed25519PrivateKey

LOG = logging.getLogger("flwr")

JOIN = f"{MessageType.QUERY}.join"
STEP = f"{MessageType.QUERY}.secure"


class Coming:
    """The preparation of a round.

    Args:
      number: of the secure round.
      asked: the nodes that are asked to join.
      admit: place in the roster -> node, of all that join -> those of them that are admitted; it
        raises `Refused` if they are too few.

    Attributes:
      requests: what to send to which node now; empty once there is nothing left to ask.
      nodes: place in the roster -> node, once it is known who joins.
    """

    def __init__(
        self,
        agreement: Agreement,
        key: Ed25519PrivateKey,
        number: int,
        asked: Collection[int],
        admit: Callable[[dict[int, int]], dict[int, int]],
    ) -> None:
        self.agreement, self._key, self.number, self._admit = agreement, key, number, admit
        self._question = question(agreement, key, number)
        self._joining: dict[int, Joining] = {}  # by node
        self._preparation: Preparation | None = None
        self.requests: Mapping[int, bytes] = dict.fromkeys(asked, pack(self._question))
        self.nodes: dict[int, int] = {}

    @property
    def kind(self) -> str:
        """Of the messages that go out now."""
        return STEP if self._preparation else JOIN

    @property
    def stage(self) -> str:
        """What the server is waiting for."""
        return self._preparation.stage if self._preparation else "joins"

    @property
    def joined(self) -> Collection[int]:
        """The nodes that want to take part."""
        return self._joining.keys()

    @property
    def prepared(self) -> Prepared | None:
        """The round, once it is ready for its sum."""
        return self._preparation.prepared if self._preparation else None

    @property
    def dropped(self) -> Mapping[int, str]:
        """Clients that were lost since they joined, and why."""
        return self._preparation.dropped if self._preparation else {}

    @property
    def declined(self) -> Collection[int]:
        """Clients that have joined, and do not want to take part any more."""
        return self._preparation.declined if self._preparation else ()

    @property
    def cheated(self) -> Mapping[int, str]:
        """Clients that sent what no honest client sends, and what it was."""
        return self._preparation.cheated if self._preparation else {}

    @property
    def over(self) -> bytes:
        """What clients of a round that is given up are told."""
        return pack(Over(self.number))

    def suffices(self, nodes: Collection[int]) -> bool:
        """Whether a sum can come of it if these nodes alone reply; of joins the server says it."""
        if self._preparation is None:
            return True
        return self._preparation.suffices({self._place(node) for node in nodes})

    def receive(self, node: int, reply: bytes) -> None:
        """Takes the reply of a node."""
        if self._preparation is not None:
            self._preparation.receive(self._place(node), reply)
            return
        try:
            self._joining[node] = joining(self.agreement, self._question, reply)
        except Refused as error:
            fields = {"node": node, "client": str(node), "why": str(error)}
            LOG.warning(f"{JOIN}: client %(client)s is refused: %(why)s", fields)

    def decline(self, node: int) -> None:
        """Takes it that a node does not want to take part; before it has joined that is nothing."""
        if self._preparation is not None:
            self._preparation.decline(self._place(node))

    def _place(self, node: int) -> int:
        return next((place for place, other in self.nodes.items() if other == node), -1)

    def advance(self) -> None:
        """Goes on with those who replied; `Refused` if they are too few."""
        try:
            self._advance()
        except Refused:
            self.requests = {}
            raise

    def _advance(self) -> None:
        if self._preparation is None:
            self._begin()
        else:
            self._preparation.advance()
        assert self._preparation is not None
        requests = self._preparation.requests
        self.requests = {self.nodes[place]: request for place, request in requests.items()}

    def _begin(self) -> None:
        """With those who joined and are admitted."""
        nodes: dict[int, int] = {}
        for node, (place, _) in self._joining.items():
            if nodes.setdefault(place, node) != node:
                fields = {"node": node, "client": str(node), "place": place}
                LOG.warning(
                    "client %(client)s says that it is number %(place)d of the roster, as another"
                    " does",
                    fields,
                )
        self.nodes = self._admit(nodes)
        drawn = {place: self._joining[node].drawn for place, node in self.nodes.items()}
        self._preparation = Preparation(self.agreement, self._key, self.number, drawn)
