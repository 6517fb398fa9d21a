# SPDX-License-Identifier: Apache-2.0
"""Who is in a federation, and what its secure rounds have shown of each.

Sums of all kinds share it: who cheated in one is left out of every other.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from agnosticfl.deploy import blame
from agnosticfl.deploy.flower.coming import Coming
from agnosticfl.deploy.flower.federation import LOG, Attempt, RoundPolicy, say
from agnosticfl.errors import BadInput
from agnosticfl.secagg.agreement import Agreement, check_agreement, reckoned_dishonest
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.opening import Opening


class Standing:
    """The members, and who of them is left out.

    Args:
      agreement: of the federation, as its clients know it.
      members: names of the clients in the order of the roster, for the log.
      latest: gives agreement and members as they are now.
    """

    def __init__(
        self,
        agreement: Agreement,
        members: Sequence[str] = (),
        latest: Callable[[], tuple[Agreement, Sequence[str]]] | None = None,
    ):
        self.agreement = check_agreement(agreement)
        self.members = tuple(members) or tuple(map(str, range(len(agreement.roster))))
        self.latest = latest or (lambda: (self.agreement, self.members))
        self.cheats = blame.Blame()  # for the whole run
        self.losses = blame.Blame()  # since the last sum
        self._places: dict[int, int] = {}  # node -> place in the roster, of all that ever joined
        self._last = 0  # number of the last secure round

    @property
    def searching(self) -> bool:
        """Whether the last attempt failed, so that it is not known yet who may come next."""
        return self.cheats.failing or self.losses.failing

    @property
    def left_out(self) -> set[int]:
        """The nodes that are not asked any more, whatever they say."""
        return {node for node, place in self._places.items() if place in self.cheats.named}

    def take_number(self) -> int:
        """The next secure round's number; a server that lost its memory uses none twice either."""
        self._last = max(self._last + 1, time.time_ns() // 10**6)
        return self._last

    def follow(self, attempt: Attempt) -> None:
        """Goes on with another roster, if there is one: members came, went or have new keys.

        Who cheated stays left out, wherever it stands now.
        """
        old = self.agreement
        try:
            new, members = self.latest()
            check_agreement(new)
        except BadInput as error:
            LOG.warning("%s: the roster stays as it was: %s", attempt.called, error)
            return
        if new == old:
            return
        self.agreement, self.members = new, tuple(members)
        self._places, self.losses = {}, blame.Blame()
        keys = {key: place for place, key in enumerate(new.roster)}
        named = self.cheats.named.items()
        stay = {keys[old.roster[at]]: why for at, why in named if old.roster[at] in keys}
        self.cheats = blame.Blame(named=stay)
        name = new.terms.get("roster", "")
        LOG.info("%s: from now on with the roster %s", attempt.called, name)

    def admit(
        self, nodes: dict[int, int], policy: RoundPolicy, seed: int, attempt: Attempt
    ) -> dict[int, int]:
        """Lets in those who join, place -> node, except whom earlier rounds have left out."""
        needed = max(policy.minimum, self.agreement.fewest)
        self._places |= {node: place for place, node in nodes.items()}
        for known in (self.cheats, self.losses):
            draw = (seed, attempt.round, attempt.number)
            choice = blame.left_out(known, nodes, needed, draw, self.members)
            if choice.why:
                LOG.warning("%s: %s", attempt.called, choice.why)
            nodes = {place: node for place, node in nodes.items() if place not in choice.out}
        if len(nodes) < needed:
            raise Refused(f"{len(nodes)} clients join, and {needed} are needed")
        return nodes

    def learn(
        self, coming: Coming, opening: Opening | None, attempt: Attempt, well: bool = False
    ) -> None:
        """Remembers what a round says of its clients, whether it ended well or failed.

        Cheating counts for the whole run. A client that is only lost is left out of the next
        attempt, and is welcome again after the next sum. Who declined is to blame for nothing.
        """
        cheated = {**coming.cheated, **(opening.cheated if opening else {})}
        self.note(cheated, attempt)
        known, nodes = self.cheats, coming.nodes
        pairs = opening.contradictions if opening else set[blame.Pair]()
        liars = reckoned_dishonest(self.agreement, len(nodes))
        if opening and well:
            known = blame.succeeded(blame.contradicted(known, pairs, liars), opening.survivors)
            self.losses = blame.Blame()
        elif pairs:
            known = blame.failed(known, nodes, pairs, liars)
        elif opening and opening.total is not None:
            # Somebody's numbers were wrong, and nobody can see whose.
            known = blame.failed(known, opening.survivors)
        elif opening and opening.doubtful:
            known = blame.failed(known, opening.doubtful)
        elif not cheated:
            dropped = {**coming.dropped, **(opening.dropped if opening else {})}
            declined = {*coming.declined, *(opening.declined if opening else ())}
            self.losses = blame.failed(self.losses, dropped or nodes.keys() - declined)
        self._update_cheats(known, attempt)

    def note(self, cheated: Mapping[int, str], attempt: Attempt) -> None:
        """Remembers who has cheated, by its place, and in what way."""
        known = self.cheats
        for place, why in cheated.items():
            known = blame.shown(known, place, why)
        self._update_cheats(known, attempt)

    def _update_cheats(self, known: blame.Blame, attempt: Attempt) -> None:
        """Takes over what is known now, and says who is new among those who are left out."""
        new = known.named.keys() - self.cheats.named.keys()
        self.say_lost({at: f"is left out from now on: {known.named[at]}" for at in new}, attempt)
        self.cheats = known

    def say_lost(self, reasons: Mapping[int, str], attempt: Attempt) -> None:
        """A line of the log for each client that is lost, by its place."""
        for place, why in sorted(reasons.items()):
            fields = {"client": self.members[place], "why": why}
            say(attempt, "lost", "client %(client)s %(why)s", fields, logging.WARNING)


def who_left(coming: Coming, opening: Opening | None = None) -> set[int]:
    """The nodes that declined after they had joined; none if a round has more to be learnt from.

    That somebody cheated is to be remembered, and who has helped to open a sum does not again.
    """
    if coming.cheated:
        return set()
    places = set(coming.declined)
    if opening is not None:
        shown = opening.cheated, opening.contradictions, opening.doubtful, opening.unmasked
        if any(shown):
            return set()
        places |= opening.declined
    return {coming.nodes[place] for place in places}
