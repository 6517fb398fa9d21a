# SPDX-License-Identifier: Apache-2.0
"""How long a stage of a round waits for those who are silent, when others have replied.

Nobody knows whether a client that is silent will ever reply. Without it the round may fail, and
then the whole time of the stage is its own. If the round can go on without it, waiting costs
everybody else: so it has twice as long as the longest pause between two replies was so far (which
is long where clients differ, and short where a busy server hears one after the other), though not
longer than all replies took; and three times that where more are silent than was planned for: the
next who is lost may be one too many.
"""

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

LULL = 5.0  # seconds that the silent have, at least
PAUSES = 2.0  # times the longest pause so far
LONGER = 3.0  # times as long, where they are more than planned for


class Patience(NamedTuple):
    """With whose replies a stage may end."""

    share: float  # of those who are asked: so many may well be silent
    suffices: Callable[[Collection[int]], bool]  # whether the round can go on with these nodes'

    def planned(self, asked: int) -> int:
        """How many of so many may well be silent."""
        return math.floor(self.share * asked)


def silence(
    patience: Patience, asked: int, came: Collection[int], silent: int, pause: float, took: float
) -> float:
    """Seconds without a reply after which nobody else is waited for.

    Args:
      came: the nodes whose replies are there.
      silent: how many of those who were asked have not replied.
      pause: the longest between two replies, or before the first, in seconds.
      took: seconds until the last reply.
    """
    if not patience.suffices(came):
        return math.inf
    lull = max(LULL, min(PAUSES * pause, took))
    return lull if silent <= patience.planned(asked) else LONGER * lull
