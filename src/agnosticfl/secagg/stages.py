# SPDX-License-Identifier: Apache-2.0
"""How the server goes through the stages of a round: it asks, takes what comes, and goes on.

    while stages.requests:
        for client, reply in ...:            # any subset of those asked, in any order
            stages.receive(client, reply)
        stages.advance()                     # or Refused: too few are left

Replies are taken one at a time, so no more than one masked vector is in memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from agnosticfl.errors import check
from agnosticfl.secagg.graph import quorum
from agnosticfl.secagg.holders import Holders, connected
from agnosticfl.secagg.messages import Over, Refused, Setup, pack
from agnosticfl.secagg.primitives import CryptoError


class Stage(NamedTuple):
    """What the server waits for at a time."""

    name: str
    take: Callable[[int, bytes], Any]  # what it does with the reply of a client
    suffices: Callable[[Collection[int]], bool]  # whether a sum can come of these clients alone
    go_on: Callable[[Any], Mapping[int, bytes]]  # and with all of them: the next requests


class Complained(Exception):
    """A client says that it cannot go on, because of others."""


class Stages:
    """Some stages of a round.

    Attributes:
      requests: what to send to whom now; empty once all is done.
      dropped: clients that are out of the round, and why.
      declined: clients that are out of it because they do not want to take part any more.
      cheated: clients that sent what no honest client sends, and what it was.
    """

    def __init__(self, setup: Setup, holders: Holders, fewest: int, stages: Sequence[Stage]):
        self._setup, self._holders, self._fewest = setup, holders, fewest
        self._stages, self._replies = list(stages), dict[int, Any]()
        self._quorum = quorum(len(setup.cohort))
        self.requests: Mapping[int, bytes] = {}
        self.dropped: dict[int, str] = {}
        self.declined: set[int] = set()
        self.cheated: dict[int, str] = {}

    @property
    def stage(self) -> str:
        """What the server is waiting for."""
        return self._stages[0].name if self._stages else "done"

    @property
    def over(self) -> bytes:
        """What clients of a round that is abandoned are told, so that they forget its secrets."""
        return pack(Over(self._setup.number))

    def receive(self, client: int, reply: bytes) -> None:
        """Takes a client's reply to its last request; one that cannot be used drops the client."""
        if not self._is_awaited(client):
            return
        try:
            self._replies[client] = self._stages[0].take(client, reply)
        except Complained as error:
            self.dropped[client] = f"{self.stage}: {error}"
        except (Refused, CryptoError) as error:
            self.dropped[client] = self.cheated[client] = f"{self.stage}: {error}"

    def refuse(self, client: int, reason: str) -> None:
        """Notes that a client did not answer, and why."""
        if self._is_awaited(client):
            self.dropped[client] = f"{self.stage}: {reason}"

    def decline(self, client: int) -> None:
        """Notes that a client does not answer because it does not want to; that is no failure."""
        if self._is_awaited(client):
            self.declined.add(client)

    def advance(self) -> None:
        """Goes on with those who replied; `Refused` if they are too few."""
        check(bool(self.requests), "the secure round is over")
        for client in self.requests:
            self.refuse(client, "no reply")
        replies, self._replies = dict(sorted(self._replies.items())), {}
        self.requests = self._stages[0].go_on(replies)
        del self._stages[0]

    def suffices(self, clients: Collection[int]) -> bool:
        """Whether a sum can come of the round if, of those asked now, these alone have replied.

        Nobody may be lost after them then; without them it is certain that the round fails.
        """
        return self._stages[0].suffices(clients)

    def _is_awaited(self, client: int) -> bool:
        """Whether it was asked, and nothing is known of its answer yet."""
        known = (self._replies, self.dropped, self.declined)
        return client in self.requests and not any(client in each for each in known)

    def _connected(self, clients: Collection[int]) -> set[int]:
        """Those of `clients` with enough holders among them; the others are dropped."""
        left = connected(self._holders, clients)
        for client in set(clients) - left:
            self.dropped[client] = f"{self.stage}: too few of its neighbours are left"
        self._check_enough(left, "have enough neighbours")
        return left

    def _check_enough(self, clients: Collection[int], what: str) -> None:
        if len(clients) < self._fewest:
            raise self._abandoned(f"{len(clients)} clients {what}, not {self._fewest} or more")

    def _abandoned(self, why: str) -> Refused:
        return Refused(f"round {self._setup.number} is abandoned at {self.stage}: {why}")
