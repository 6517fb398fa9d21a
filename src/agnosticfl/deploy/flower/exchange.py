# SPDX-License-Identifier: Apache-2.0
"""The messages of a secure round: how they go to clients, and what becomes of the answers."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from agnosticfl.deploy.flower.coming import STEP, Coming
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    Gathered,
    RoundPolicy,
    enough_vectors,
    gather,
    request,
    say,
    stamp,
)
from agnosticfl.deploy.flower.patience import Patience
from agnosticfl.deploy.flower.records import (
    AHEAD,
    ARRAYS,
    DECLINED,
    REQUEST,
    ROUND,
    SECURE,
    to_record,
)
from agnosticfl.deploy.flower.standing import Standing
from agnosticfl.secagg.agreement import Agreement
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.opening import Opening

VECTORS = "masked vectors"  # the stage of `Opening` in which clients do their work
SURVIVORS = "survivors"  # and the one after it


class Exchange(NamedTuple):
    """The way to the clients, and what holds for all messages of a round."""

    grid: Grid
    policy: RoundPolicy
    agreement: Agreement
    standing: Standing

    def prepare(self, coming: Coming, attempt: Attempt) -> None:
        """One exchange of a round that is being prepared, on its own."""
        least = max(self.policy.minimum, self.agreement.fewest)
        gathered = gather(
            self.grid,
            self._messages(coming, coming.requests, attempt),
            attempt,
            seconds=self.policy.step,
            stage=coming.stage,
            patience=self._patience(coming.suffices, least),
            refusal=_no_answer,
        )
        before = set(coming.dropped)
        for reply in gathered.replies:
            coming.receive(reply.metadata.src_node_id, _bytes(reply.content))
        for node in gathered.declined:
            coming.decline(node)
        coming.advance()
        self._say_dropped(coming.dropped, before, attempt)

    def open(
        self,
        opening: Opening,
        nodes: Mapping[int, int],
        following: Coming | None,
        arrays: Mapping[str, np.ndarray],
        attempt: Attempt,
    ) -> None:
        """One exchange of a sum, with one of the round that is prepared beside it.

        Args:
          opening: the sum.
          nodes: place in the sum -> the client that has it.
          following: the round that is prepared beside it, if one is.
          arrays: what clients work on.
        """
        work = opening.stage == VECTORS
        seconds = self.policy.deadline if work else self.policy.step
        common = RecordDict({ROUND: stamp(attempt)})
        if work:
            common[ARRAYS] = to_record(arrays)
        ahead = dict(following.requests) if following else {}

        def secure(node: int, content: bytes) -> ConfigRecord:
            beside = {AHEAD: ahead.pop(node)} if node in ahead else {}
            return ConfigRecord({REQUEST: content, **beside})

        messages = [
            request(
                nodes[place],
                MessageType.TRAIN if work else STEP,
                RecordDict({**common, SECURE: secure(nodes[place], content)}),
                seconds,
            )
            for place, content in opening.requests.items()
        ]
        if following:
            messages += self._messages(following, ahead, attempt)
        place_of = {nodes[place]: place for place in opening.requests}

        def suffices(came: Collection[int]) -> bool:
            return opening.suffices({place_of[node] for node in came})

        room = enough_vectors(self.policy, len(nodes), self.agreement.dropout)
        gathered = gather(
            self.grid,
            messages,
            attempt,
            seconds=seconds,
            stage=opening.stage,
            enough=room if work else None,
            # Who works slowly is not silent: c reports are waited for, though fewer would do.
            patience=self._patience(suffices, self.policy.clients if work else 0),
            counted=place_of,
            refusal=_no_answer,
        )
        before = set(opening.dropped)
        known = set(following.dropped) if following else set[int]()
        _hand_out(gathered, opening, place_of, following, attempt)
        opening.advance()
        self._say_dropped(opening.dropped, before, attempt)
        if following and following.requests:
            after = attempt._replace(round=attempt.round + 1)
            _advance(following, after)
            self._say_dropped(following.dropped, known, after)
        if opening.stage == SURVIVORS and len(opening.survivors) < self.policy.minimum:
            raise Abandoned(
                f"{len(opening.survivors)} reports came, and {self.policy.minimum} are needed"
            )

    def end(self, coming: Coming | None, attempt: Attempt) -> None:
        """Tells the clients of a round that is given up to forget its secrets."""
        if coming is None:
            return
        content = RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: coming.over})})
        nodes = coming.nodes.values()
        messages = [request(node, STEP, content, self.policy.step) for node in nodes]
        ready = Patience(1.0, lambda _: True)  # nothing depends on their answers
        gather(self.grid, messages, attempt, seconds=self.policy.step, patience=ready)

    def _messages(
        self, coming: Coming, requests: Mapping[int, bytes], attempt: Attempt
    ) -> list[Message]:
        return [
            request(
                node,
                coming.kind,
                RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: content})}),
                self.policy.step,
            )
            for node, content in requests.items()
        ]

    def _patience(self, suffices: Callable[[Collection[int]], bool], least: int) -> Patience:
        """With those who are silent at one stage: a tenth of those who are asked in it may well be.

        That is more than a tenth of the cohort in all its stages; whether enough are left is seen
        at each of them (`suffices`).
        """
        return Patience(self.agreement.dropout, lambda came: len(came) >= least and suffices(came))

    def _say_dropped(
        self, dropped: Mapping[int, str], before: Collection[int], attempt: Attempt
    ) -> None:
        new = dropped.keys() - set(before)
        self.standing.say_lost({at: f"is dropped: {dropped[at]}" for at in new}, attempt)


def _hand_out(
    gathered: Gathered,
    opening: Opening,
    place_of: Mapping[int, int],
    following: Coming | None,
    attempt: Attempt,
) -> None:
    """Gives each answer to the sum, and what came with it to the round that is prepared."""
    for reply in gathered.replies:
        node, content = reply.metadata.src_node_id, _bytes(reply.content)
        if node in place_of:
            opening.receive(place_of[node], content)
            content = reply.content.config_records[SECURE].get(AHEAD)
        if following and isinstance(content, bytes):
            following.receive(node, content)
        elif following and isinstance(content, str):
            if content == DECLINED:
                following.decline(node)
            fields = {"node": node, "client": str(node), "why": content}
            say(attempt, "next", "client %(client)s is not in the next one: %(why)s", fields)
    for node in gathered.declined:
        if node in place_of:
            opening.decline(place_of[node])
        if following:
            following.decline(node)


def _advance(following: Coming, attempt: Attempt) -> None:
    """What is prepared ahead is a help, and no reason to give the round up."""
    try:
        following.advance()
    except Refused as error:
        LOG.info("round %d is not prepared ahead: %s", attempt.round, error)


def _bytes(content: RecordDict) -> bytes:
    return content.config_records[SECURE][REQUEST]  # type: ignore[return-value]


def _no_answer(content: RecordDict) -> str | None:
    answer = content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
    return None if isinstance(answer, bytes) else "its answer is not in bytes"
