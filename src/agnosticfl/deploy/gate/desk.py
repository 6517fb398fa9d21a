# SPDX-License-Identifier: Apache-2.0
"""Who is connected, and who has to go when it is full: the oldest that has not proved itself."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from agnosticfl.deploy.gate.limits import Buckets, Limits


class Visit:
    """A connection.

    Args:
      address: whom limits count it for.
      close: ends it.
    """

    def __init__(self, address: str, close: Callable[[], Any]):
        self.address, self.close = address, close
        self.proven = False  # whether a request with a client's signature came by it


class Desk:
    """Counts connections, of all and of each address.

    Whoever opens many and sends nothing only takes his own places, or those of others who did not
    prove themselves yet; a client's request comes within the first moments of its connection.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self.limits, self.clock = limits, clock
        self.visits: dict[str, dict[Visit, None]] = {}  # by address, the oldest first
        self.unproven: dict[Visit, None] = {}  # the oldest first
        self.number = 0
        self.rates = Buckets(limits.address_rate)

    def enter(self, address: str, close: Callable[[], Any]) -> Visit | None:
        """A place for a new connection; None if there is none."""
        if not self.rates.take(address, self.clock()):
            return None
        own = self.visits.get(address, {})
        if len(own) >= self.limits.address_connections and not self._send_away(own):
            return None
        if self.number >= self.limits.connections and not self._send_away(self.unproven):
            return None
        visit = Visit(address, close)
        self.visits.setdefault(address, {})[visit] = None
        self.unproven[visit] = None
        self.number += 1
        return visit

    def prove(self, visit: Visit) -> None:
        """It has shown that it is a client's."""
        visit.proven = True
        self.unproven.pop(visit, None)

    def leave(self, visit: Visit) -> None:
        """It has ended; to say so twice does no harm."""
        own = self.visits.get(visit.address, {})
        if visit in own:
            del own[visit]
            self.number -= 1
            if not own:
                del self.visits[visit.address]
        self.unproven.pop(visit, None)

    def _send_away(self, among: dict[Visit, None]) -> bool:
        """Ends the oldest of them without a proof, if there is one."""
        for visit in itertools.islice((v for v in among if not v.proven), 1):
            self.leave(visit)
            visit.close()
            return True
        return False
