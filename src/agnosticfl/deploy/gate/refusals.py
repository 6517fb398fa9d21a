# SPDX-License-Identifier: Apache-2.0
"""Refusals: what is answered, and what the log says of them."""

import time
from collections.abc import Callable
from typing import Any

LINES = 30  # that a minute's refusals may fill; the rest is counted
MINUTE = 60.0


class Refused(Exception):
    """A request that does not pass.

    Args:
      status: 404 for all that a stranger may try, so that nothing tells him what is there; 503 for
        what a client's SuperNode will try again by itself.
      why: for the log; the answer itself is empty.
    """

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class Refusals:
    """Writes down refusals, but only so many that nobody can fill the disc with them."""

    def __init__(self, write: Callable[[str], Any], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self.since, self.said, self.more = clock(), 0, 0

    def note(self, address: str, what: str) -> None:
        now = self.clock()
        if now - self.since >= MINUTE:
            if self.more:
                self._write_line(f"{self.more} more refusals in the minute before")
            self.since, self.said, self.more = now, 0, 0
        if self.said == LINES:
            self.more += 1
            return
        self.said += 1
        self._write_line(f"refused {address}: {what}")

    def _write_line(self, text: str) -> None:
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
