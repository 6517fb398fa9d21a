# SPDX-License-Identifier: Apache-2.0
"""Whoever looks for messages is alive: a client that waits for them need not say so beside.

Flower's node says it by a request of its own, some three times a minute, and as its connection is
taken by its look for messages, mostly by a new one. Of a thousand nodes that is all that a
SuperLink can do. So our clients say it only while they do not look (`Lively`), and our SuperLink
takes a look for it, and writes down those of some seconds together (`Alive`).

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_alive.py` fails if it changes.
"""

import importlib
import logging
import threading
import time
from typing import Any, NoReturn

LOG = logging.getLogger("flwr")

EVERY = 5.0  # seconds between two times that looks are written down
RECENT = 25.0  # seconds after which a look says nothing any more; one lasts 20 at most

_client: Any = importlib.import_module("flwr.supernode.fleet_http_client")
_beat: Any = importlib.import_module("flwr.proto.heartbeat_pb2")
# Flower takes a node for lost that was not heard of for twice as long.
INTERVAL: float = importlib.import_module("flwr.common.constant").HEARTBEAT_DEFAULT_INTERVAL


class Alive:
    """Nodes that have looked for messages since that was last written down."""

    def __init__(self) -> None:
        self._looked: set[int] = set()
        self._writing = threading.Lock()

    def note_look(self, node: int) -> None:
        self._looked.add(node)

    def note_leaving(self, node: int) -> None:
        """Notes that a node signs off: what was not written down before does not count any more."""
        with self._writing:
            self._looked.discard(node)

    def write(self, state: Any) -> None:
        """Has the state of a SuperLink know of all of them, in one transaction.

        That comes first: who signs off may do so within one, for which this would wait.
        """
        with state.session(), self._writing:
            looked, self._looked = self._looked, set()
            state.acknowledge_nodes(list(looked), INTERVAL)

    def keep_writing(self, state: Any) -> NoReturn:
        """In a thread that ends with its process."""
        while True:
            time.sleep(EVERY)
            try:
                self.write(state)
            except Exception as error:  # of a database that is busy: the next looks will tell
                LOG.warning("who looks for messages is not written down: %s", error)


class Lively(_client.FleetHttpClient):
    """Flower's client of a SuperLink, which does not say that it is alive if it has just looked.

    Once that could not be said, looks do not stand for it until it has been.
    """

    _heard = float("-inf")  # when the server last saw that this node is alive
    _in_doubt = False

    def ActivateNode(self, request: Any) -> Any:  # noqa: N802, as Flower has it
        return self._note_heard(super().ActivateNode(request))

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        return self._note_heard(super().PullMessages(request))

    def SendNodeHeartbeat(self, request: Any) -> Any:  # noqa: N802
        if not self._in_doubt and time.monotonic() - self._heard < RECENT:
            return _beat.SendNodeHeartbeatResponse(success=True)
        self._in_doubt = True
        found = super().SendNodeHeartbeat(request)
        self._in_doubt = False
        return found

    def _note_heard(self, found: Any) -> Any:
        self._heard = time.monotonic()
        return found
