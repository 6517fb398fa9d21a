# SPDX-License-Identifier: Apache-2.0
"""When a client looks for its next message."""

import random
import time
from collections import deque
from collections.abc import Callable

SHORTEST = 0.1  # seconds between two looks, while messages come quickly
SHARE = 0.2  # of the time since the last message: what waiting for the next one may add
PART = 0.1  # of the usual time between two messages, likewise
FEW = 3  # messages whose shortest wait is the usual one: in a round some steps are long


class Pace:
    """Soon after a message the next one may be near; who has waited for long looks seldom.

    In a large federation all steps take long, and a client looks about as often in each of them.

    Args:
      longest: seconds between two looks, whatever happens.
    """

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic):
        self._longest, self._clock = longest, clock
        self._last, self._waits = clock(), deque[float](maxlen=FEW)
        self._first = True

    def note_answer(self, came: float) -> None:
        """Notes that a message which came at that time is answered now."""
        if not self._first:  # how long the federation was not there yet says nothing
            self._waits.append(came - self._last)
        self._last, self._first = self._clock(), False

    def pause(self) -> float:
        """Seconds until the next look; not the same for all clients, or all would come at once."""
        idle, usual = self._clock() - self._last, min(self._waits, default=0.0)
        wanted = max(SHARE * idle, PART * usual, SHORTEST)
        return min(wanted, self._longest) * random.uniform(0.8, 1.2)
