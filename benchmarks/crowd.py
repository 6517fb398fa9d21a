# SPDX-License-Identifier: Apache-2.0
"""Many light clients in one process, each with a key, a connection and examples of its own.

What they do is what `deploy client` does: Flower's connection, the loop that pulls, works and
pushes, and the client's app with its secure rounds. Only who waits is another: a few threads take
the clients whose next look is due. Some drop out of rounds at random, and some are hostile.
"""

import functools
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp

from agnosticfl.core.contribution import ClientSum
from agnosticfl.deploy.flower import client_app as client
from agnosticfl.deploy.flower import secure_answers
from agnosticfl.deploy.flower.connection import Connection, connected
from agnosticfl.deploy.flower.own_app import OwnApp
from agnosticfl.deploy.flower.records import REQUEST, SECURE, SUM, to_record
from agnosticfl.deploy.flower.warm import one_message
from agnosticfl.deploy.node.contribute import Call
from agnosticfl.deploy.node.pace import Pace
from agnosticfl.deploy.roster import read_roster
from agnosticfl.registry import SOURCES


class Lost(Exception):
    """A message that a client does not answer, on purpose."""


class Moody(OwnApp):
    """A client's own app, of a client that may drop out or lie.

    Args:
      drop: the probability that it does not answer a message.
      hostile: whether it sends nonsense, whenever it is asked.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], number: int, drop: float, hostile: bool
    ):
        super().__init__(folder, config)
        self.drop, self.hostile, self.rng = drop, hostile, np.random.default_rng(number)
        self.counts = Counter[str]()  # what became of messages

    def answer(self, message: Message, connection: Connection) -> Message:
        self.counts["asked"] += 1
        if self.rng.random() < self.drop:
            self.counts["dropped"] += 1
            raise Lost("on purpose")
        reply = super().answer(message, connection)
        if self.hostile:
            self.counts["nonsense"] += 1
            return nonsense(reply)
        self.counts["refused" if reply.has_error() else "answered"] += 1
        return reply


def nonsense(reply: Message) -> Message:
    """What a hostile client sends in the place of its answer."""
    if reply.has_content() and SECURE in reply.content:
        reply.content.config_records[SECURE][REQUEST] = b"nonsense"
    if reply.has_content() and SUM in reply.content:
        reply.content[SUM] = to_record({"float32": np.full(13, np.nan, np.float32)})
    return reply


class Player:
    """One client of the crowd."""

    def __init__(self, connection: Connection, app: Moody, longest: float):
        self.connection, self.app, self.pace = connection, app, Pace(longest)
        self.failure = ""

    def look(self) -> float:
        """Looks for a message once; seconds until the next look."""
        try:
            now = time.monotonic()
            while one_message(self.connection, self.app):
                self.pace.answered(now)
                now = time.monotonic()
        except Exception as error:  # this client would end here
            self.failure = f"{type(error).__name__}: {error}"
            return float("inf")
        return self.pace.pause()


class Crowd:
    """Plays clients until the block ends.

    Args:
      clients: what gives the node key and the app of each.
      longest: seconds between a client's looks for messages, when none came for long.
      threads: that do the clients' work.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        clients: Sequence[Callable[[], tuple[Path, Moody]]],
        longest: float,
        threads: int = 8,
    ):
        self.server, self.authority, self.clients = server, authority, clients
        self.longest, self.threads = longest, threads
        self.players: list[Player] = []
        self._due: list[tuple[float, int]] = []
        self._left = list(range(len(clients)))
        self._lock, self._over = threading.Condition(), threading.Event()
        self._lines: list[Any] = []  # as long as they are held, connections last
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def __enter__(self) -> "Crowd":
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            self._lock.notify_all()
        for worker in self._workers:
            worker.join(60.0)
        # Connections end with the process: to sign all off would take minutes of the server's time.

    def _work(self) -> None:
        while not self._over.is_set():
            with self._lock:
                number = self._left.pop() if self._left else None
            if number is not None:
                self._connect(number)
                continue
            player = self._next()
            if player is None:
                continue
            wait = self.players[player].look()
            with self._lock:
                heapq.heappush(self._due, (time.monotonic() + wait, player))
                self._lock.notify()

    def _connect(self, number: int) -> None:
        key, app = self.clients[number]()
        line = connected(self.server, self.authority, key)
        connection = line.__enter__()
        with self._lock:
            self.players.append(Player(connection, app, self.longest))
            self._lines.append(line)
            heapq.heappush(self._due, (time.monotonic(), len(self.players) - 1))

    def _next(self) -> int | None:
        """The client whose look is due, when one is."""
        with self._lock:
            now = time.monotonic()
            if self._due and self._due[0][0] <= now:
                return heapq.heappop(self._due)[1]
            until = min(self._due[0][0] - now, 0.2) if self._due else 0.2
            self._lock.wait(max(until, 0.001))
            return None

    def counts(self) -> Counter[str]:
        """What became of all messages so far."""
        total = Counter[str]()
        for player in list(self.players):
            total.update(player.app.counts)
        return total

    def failures(self) -> list[str]:
        """Clients that would have ended, and why."""
        return [player.failure for player in self.players if player.failure]


def light_app(folder: Path) -> ClientApp:
    """The client's app of the toy, without a compiler: a thousand of them fit in one process.

    What each would read and check on a machine of its own, roster and data, is read once here.
    """
    made: dict[str, Any] = {}

    def build(table: Any, what: str) -> Any:
        if (name := repr(table)) not in made:
            made[name] = SOURCES.build(table, what)
        return made[name]

    client.SOURCES = SimpleNamespace(build=build)  # pyright: ignore[reportAttributeAccessIssue]
    secure_answers.read_roster = functools.cache(read_roster)
    return client.client_app(folder, toy_client)


def toy_client(call: Call) -> ClientSum:
    """Procedure CLIENT for the toy's loss (x − w)², one full batch, in numpy."""
    x, domain = call.data.examples["x"].astype(np.float64), call.data.domain
    count = np.bincount(domain, minlength=len(call.alpha))
    w = float(call.params["w"])
    loss = np.bincount(domain, (x - w) ** 2, minlength=len(call.alpha))
    beta = float(call.alpha @ count)
    rate = call.config.client_optimizer["learning_rate"]
    step = rate * (call.alpha[domain] @ (2 * (w - x))) / beta if beta else 0.0
    leaves = (beta * step, beta, loss, count, 0.0)
    arrays: list[Any] = [np.asarray(leaf, np.float32) for leaf in leaves]
    return ClientSum(*arrays)
