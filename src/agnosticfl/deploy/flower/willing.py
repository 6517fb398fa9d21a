# SPDX-License-Identifier: Apache-2.0
"""Looking for enough clients that take part in a round. Who does not is no failure: others are
asked, and then the same ones again, later and later, before an attempt counts as one.
"""

import time
from collections.abc import Callable, Collection

from agnosticfl.deploy.flower.federation import LOG, Attempt, Gathered, RoundPolicy

SHORTEST, LONGEST = 2.0, 60.0  # seconds until the same clients are asked again
SHARE = 0.2  # of the time waited so far: what waiting may add


class Looking:
    """One attempt's search for clients that take part.

    Attributes:
      unwilling: nodes that were asked and take no part just now; they are asked last.
      left: nodes that had joined a secure round and declined before they gave anything.
    """

    def __init__(self, policy: RoundPolicy, attempt: Attempt):
        self.policy, self.attempt = policy, attempt
        self.unwilling: set[int] = set()
        self.left: set[int] = set()
        self._begun = time.monotonic()

    def wait_to_ask_again(
        self, asked: Collection[int], willing: Collection[int], connected: Collection[int], why: str
    ) -> bool:
        """Waits until clients are asked again; not if there are others; False if time is up."""
        self.unwilling = (self.unwilling | set(asked)) - set(willing)
        waited = time.monotonic() - self._begun
        if waited >= self.policy.wait:
            return False
        about = f"{self.attempt.called}: {why}"
        if set(connected) - self.unwilling - set(willing):
            LOG.info("%s; others are asked", about)
            return True
        pause = min(max(SHARE * waited, SHORTEST), LONGEST, self.policy.wait - waited)
        idle = len(self.unwilling & set(connected))
        LOG.info(
            "%s; %d of %d connected take no part just now; they are asked again in %.0f s",
            *(about, idle, len(connected), pause),
        )
        time.sleep(pause)
        self.unwilling = set()  # from the beginning: all have an equal chance to be asked
        return True

    def excuse(self, left: Collection[int], why: str) -> bool:
        """Excuses those who left a round; whether one did for the first time.

        Then the round is prepared anew without them. Each is excused once per attempt: who joins
        and leaves again and again is as good as lost.
        """
        new = set(left) - self.left
        self.left |= new
        self.unwilling |= new
        if new:
            words = "%s: %s; %d had joined and take no part now, so it is prepared anew"
            LOG.info(words, self.attempt.called, why, len(new))
        return bool(new)


# (those that have answered, those that are asked last) -> what came of it.
Ask = Callable[[Collection[int], Collection[int]], Gathered]


def gather_willing(
    looking: Looking, ask: Ask, connected: Callable[[], Collection[int]]
) -> Gathered:
    """Asks until enough have answered, as long as only clients that decline are missing.

    Answers that came stay: nobody works twice on the same attempt.
    """
    whole = Gathered([], 0)
    while True:
        answered = {reply.metadata.src_node_id for reply in whole.replies}
        one = ask(answered, looking.unwilling)
        whole = Gathered(
            whole.replies + one.replies, whole.refused + one.refused, whole.declined | one.declined
        )
        answered |= {reply.metadata.src_node_id for reply in one.replies}
        if len(answered) >= looking.policy.minimum or not one.declined:
            return whole
        why = f"{len(answered)} of {looking.policy.minimum} have answered"
        if not looking.wait_to_ask_again(one.declined, answered, connected(), why):
            return whole


def still_needed(policy: RoundPolicy, answered: int) -> RoundPolicy:
    """The policy for those that are missing."""
    return policy._replace(
        clients=max(1, policy.clients - answered), minimum=max(1, policy.minimum - answered)
    )
