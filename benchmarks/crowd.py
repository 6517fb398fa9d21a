# SPDX-License-Identifier: Apache-2.0
"""Many light clients in one process, each with a key, a connection and examples of its own.

What they do is what `deploy client` does: Flower's connection, the loop that pulls, works and
pushes, and the client's app with its secure rounds, each in a thread. Some drop out of rounds at
random, and some are hostile.
"""

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
from agnosticfl.deploy.flower.connection import Connection, NotLetIn, connected
from agnosticfl.deploy.flower.own_app import OwnApp
from agnosticfl.deploy.flower.records import REQUEST, SECURE, SUM, to_record
from agnosticfl.deploy.flower.warm import serve
from agnosticfl.deploy.node.contribute import Call
from agnosticfl.deploy.roster import read_roster
from agnosticfl.registry import SOURCES

AGAIN = 5.0  # seconds until a client that is not let in tries again


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
    """What a hostile client sends in place of its answer."""
    if reply.has_content() and SECURE in reply.content:
        reply.content.config_records[SECURE][REQUEST] = b"nonsense"
    if reply.has_content() and SUM in reply.content:
        reply.content[SUM] = to_record({"float32": np.full(13, np.nan, np.float32)})
    return reply


class Player:
    """One client of the crowd."""

    def __init__(self, connection: Connection, app: Moody, longest: float):
        self.connection, self.app, self.longest = connection, app, longest
        self.failure = ""

    def serve(self) -> None:
        """What `warm.serve` does, until it fails."""
        try:
            serve(self.connection, self.app, self.longest)
        except Exception as error:  # this client would end here
            self.failure = f"{type(error).__name__}: {error}"


class Crowd:
    """Plays clients until the process ends, each in a thread: most of them wait for the server.

    Args:
      clients: what gives the node key and the app of each.
      longest: seconds between a client's looks for messages, when none came for long.
      at_once: how many may be connecting.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        clients: Sequence[Callable[[], tuple[Path, Moody]]],
        longest: float,
        at_once: int = 8,
    ):
        self.server, self.authority, self.longest = server, authority, longest
        self.players: list[Player] = []
        self._connecting = threading.Semaphore(at_once)
        self._workers = [
            threading.Thread(target=self._work, args=[make], daemon=True) for make in clients
        ]

    def begin(self) -> None:
        for worker in self._workers:
            worker.start()

    def _work(self, make: Callable[[], tuple[Path, Moody]]) -> None:
        key, app = make()
        while True:
            line = connected(self.server, self.authority, key)
            try:
                with self._connecting:
                    player = Player(line.__enter__(), app, self.longest)
            except NotLetIn:  # as a client that waits until it is
                time.sleep(AGAIN)
                continue
            self.players.append(player)
            player.serve()
            threading.Event().wait()  # as long as `line` is held, the connection lasts

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
    turn = threading.Lock()  # or all that are asked first would read it at once

    def once(name: str, make: Callable[[], Any]) -> Any:
        with turn:
            if name not in made:
                made[name] = make()
            return made[name]

    def build(table: Any, what: str) -> Any:
        return once(repr(table), lambda: SOURCES.build(table, what))

    def read(path: Path) -> Any:
        return once(str(path), lambda: read_roster(path))

    client.SOURCES = SimpleNamespace(build=build)  # pyright: ignore[reportAttributeAccessIssue]
    secure_answers.read_roster = read
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
