# SPDX-License-Identifier: Apache-2.0
"""The federation as the server meets it: who is asked, until when, and what is kept of the answers.

All of Flower that the server's side of a round touches is here: a `Grid`, which carries messages.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from agnosticfl.deploy.flower.patience import LULL, Patience, silence
from agnosticfl.deploy.flower.records import DECLINED, ROUND
from agnosticfl.deploy.flower.whole import push_some
from agnosticfl.deploy.task import EVALUATION, NO_PROGRESS, TRAINING, sum_called
from agnosticfl.errors import check
from agnosticfl.secagg.graph import waited_for

T = TypeVar("T")

LOG = logging.getLogger("flwr")  # Flower's own, so that `flwr log` shows these lines too

SHORTEST, LONGEST = 0.05, 1.0  # seconds between two looks for replies, or for clients
SHARE = 0.2  # of the time waited so far: what waiting may add
EACH = 0.002  # seconds for each reply that is waited for: those of many come together
UNWILLING = "does not join"  # what is said of a client that declines


class RoundPolicy(NamedTuple):
    """How a round goes over real machines."""

    clients: int  # c: a round ends when so many have reported
    minimum: int  # fewer reports by the deadline, and the round is abandoned and tried again
    over_selection: float = 1.3  # this many times c clients are asked (secure: `enough_vectors`)
    deadline: float = 600.0  # seconds for a client's work
    step: float = 60.0  # seconds for each of the other steps of a secure round
    wait: float = 3600.0  # seconds to wait for enough clients that are connected and take part
    attempts: int = 5  # at one round, before the run ends as failed


def num_asked(policy: RoundPolicy) -> int:
    """How many clients are asked to take part in a round, if there are as many."""
    return math.ceil(round(policy.over_selection * policy.clients, 6))


def enough_vectors(policy: RoundPolicy, cohort: int, dropout: float) -> int:
    """For how many masked vectors of a cohort a secure round waits at most.

    Over-selection makes cohorts larger than c, and who is not waited for is lost like one that
    died: no more of them than the neighbours were planned for.
    """
    return max(policy.clients, waited_for(cohort, dropout))


def pause(waited: float) -> float:
    """Seconds until the next look: soon after something came, seldom when nothing does."""
    return min(max(SHARE * waited, SHORTEST), LONGEST)


class NoProgress(RuntimeError):
    """A round was abandoned as often as is allowed."""


class Abandoned(RuntimeError):
    """An attempt at a round that cannot be finished; nothing of it is used."""


def check_policy(policy: RoundPolicy) -> RoundPolicy:
    """Returns `policy`, or says which of its values is not allowed."""
    check(policy.clients >= 1, f"clients per round (c) is {policy.clients}; it must be at least 1")
    check(
        1 <= policy.minimum <= policy.clients,
        f"minimum number of reports is {policy.minimum};"
        f" it must be from 1 to clients per round, {policy.clients}",
    )
    check(
        policy.over_selection >= 1,
        f"over-selection is {policy.over_selection}; it must be at least 1",
    )
    for name in ("deadline", "step"):
        seconds = getattr(policy, name)
        check(seconds > 0, f"{name} is {seconds} seconds; it must be above 0")
    check(policy.attempts >= 1, f"attempts is {policy.attempts}; it must be at least 1")
    return policy


class Attempt(NamedTuple):
    """One try at a round. Its token is in every message of it, so that no other can be mixed in."""

    round: int  # t; of an evaluation, the number of its question
    number: int  # from 1 on
    token: str
    kind: str = TRAINING

    @property
    def called(self) -> str:
        """What the log calls it."""
        return sum_called(self.kind, self.round)


def select(
    grid: Grid,
    policy: RoundPolicy,
    seed: int,
    attempt: Attempt,
    without: Collection[int] = (),
    last: Collection[int] = (),
) -> list[int]:
    """The clients that are asked, drawn among those connected now, without some.

    Args:
      last: those that are asked only if there are not enough others.
    """
    begun, told = time.monotonic(), -1
    while len(nodes := sorted(set(grid.get_node_ids()) - set(without))) < policy.clients:
        waited = time.monotonic() - begun
        if len(nodes) != told and policy.wait > 0:
            told = len(nodes)
            fields = {"connected": told, "needed": policy.clients}
            say(attempt, "waiting", "%(connected)d of %(needed)d clients are connected", fields)
        if waited > policy.wait:
            break
        time.sleep(pause(waited))
    if len(nodes) < policy.minimum:
        raise Abandoned(f"{len(nodes)} clients are connected, and {policy.minimum} are needed")
    wanted = num_asked(policy)
    # Numbers of nodes need all 64 bits: only their places in the list are drawn.
    # Looks at a model are by the same clients, so that they can be compared.
    draw = 0 if attempt.kind == EVALUATION else attempt.round
    rng = np.random.default_rng([seed, draw, attempt.number])
    drawn = [nodes[place] for place in rng.permutation(len(nodes))]
    return sorted(drawn, key=lambda node: node in last)[:wanted]


def say(
    attempt: Attempt, event: str, words: str, fields: Mapping[str, Any], level: int = logging.INFO
) -> None:
    """A line of the log whose fields are read, too (`seeing.keeper` says by whom and which)."""
    own = {"event": event, "round": attempt.round, "attempt": attempt.number, "kind": attempt.kind}
    LOG.log(level, f"{attempt.called}: {words}", {**own, **fields})


def request(node: int, kind: str, content: RecordDict, seconds: float) -> Message:
    """A message that nobody answers after `seconds`."""
    return Message(content, node, kind, ttl=seconds)


def stamp(attempt: Attempt, **more: Any) -> ConfigRecord:
    """The record by which messages of one attempt are known."""
    return ConfigRecord({**attempt._asdict(), **more})


def attempt_of(record: ConfigRecord) -> Attempt:
    """The inverse of `stamp`."""
    return Attempt(*(record[name] for name in Attempt._fields))  # type: ignore[arg-type]


class Gathered(NamedTuple):
    """What came of the messages of one stage."""

    replies: list[Message]  # those that are usable
    refused: int  # those whose content cannot be right
    declined: frozenset[int] = frozenset()  # the nodes that do not join


def gather(
    grid: Grid,
    messages: Sequence[Message],
    attempt: Attempt,
    *,
    seconds: float,
    stage: str | None = None,
    enough: int | None = None,
    patience: Patience | None = None,
    counted: Collection[int] | None = None,
    refusal: Callable[[RecordDict], str | None] = lambda _: None,
) -> Gathered:
    """Sends messages and waits for their replies.

    Returns when `enough` usable ones have come, when all have, when the `patience` with those who
    are silent is over, or after `seconds`. What comes later is never looked at: its message ends
    with this call, its token belongs to no other attempt.

    Args:
      stage: what this is called in the log; by default as the messages are.
      patience: without it, who is silent costs all of `seconds`.
      counted: the nodes whose replies count for `enough` and `patience`; by default all. Others are
        waited for a little when these are done, until all have replied but those who may well be
        silent.
      refusal: content of a reply -> why it cannot be right; None if it can.
    """
    kind = stage or (messages[0].metadata.message_type if messages else "nothing")
    own = {message.metadata.dst_node_id for message in messages} if counted is None else counted
    about = {"stage": kind, "asked": len(own)}
    say(attempt, "stage", "%(stage)s: %(asked)d are asked", about)
    sent = zip(push_some(grid, messages), messages, strict=True)
    waiting = {number: message.metadata.dst_node_id for number, message in sent if number}
    replies, refused, declined = list[Message](), 0, set[int]()
    came = set[int]()  # those of whom a reply counts
    beside = patience.planned(len(messages) - len(own)) if patience else 0
    begun = last = time.monotonic()
    longest = 0.0  # pause between two replies
    while waiting:
        looked = time.monotonic()
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if not reply.has_error():  # which may be the SuperLink's word on who is gone
                now = time.monotonic()
                longest, last = max(longest, now - last), now
            if node in own and len(came) == enough:
                _say_of(node, attempt, "late", "%(stage)s: client %(client)s is not needed", about)
                continue
            lost = _no_answer(reply, node)
            wrong = None if lost else _foreign(reply.content, attempt) or refusal(reply.content)
            if lost is None and wrong is None:
                replies.append(reply)
                if node in own:
                    came.add(node)
                continue
            if lost == UNWILLING:  # which is nothing that went wrong
                declined.add(node)
                words = "%(stage)s: client %(client)s %(why)s"
                _say_of(node, attempt, "declined", words, {**about, "why": lost})
                continue
            refused += wrong is not None
            reason = lost or f"is refused: {wrong}"
            words = "%(stage)s: client %(client)s %(why)s"
            _say_of(node, attempt, "lost", words, {**about, "why": reason}, logging.WARNING)
        now = time.monotonic()
        silent = sum(node in own for node in waiting.values())
        done = silent == 0 or len(came) == enough
        if done and len(waiting) - silent <= beside:
            break
        lull = LULL if done else math.inf
        if patience and not done:
            lull = silence(patience, len(own), came, silent, longest, last - begun)
        if now - last > lull or now - begun > seconds:
            break
        # The SuperLink may have held the look until there was something to see.
        time.sleep(max(pause(now - last) - (now - looked), EACH * len(waiting), 0.0))
    for node in waiting.values():
        # Who is not needed is no loss; under secure sums it is, which is said there.
        words = "%(stage)s: client %(client)s %(why)s"
        why = {**about, "why": "is no longer waited for"}
        late = len(came) == enough
        event, level = ("late", logging.INFO) if late else ("lost", logging.WARNING)
        _say_of(node, attempt, event, words, why, level)
    found = {"came": len(came), "seconds": time.monotonic() - begun, "last": last - begun}
    words = "%(stage)s: %(came)d of %(asked)d in %(seconds).1f s, the last after %(last).1f s"
    say(attempt, "answers", words, {**about, **found})
    return Gathered(replies, refused, frozenset(declined))


def _say_of(
    node: int,
    attempt: Attempt,
    event: str,
    words: str,
    fields: Mapping[str, Any],
    level: int = logging.INFO,
) -> None:
    """The same of one node; its name takes the place of its number where it is known."""
    say(attempt, event, words, {**fields, "node": node, "client": str(node)}, level)


def _no_answer(reply: Message, node: int) -> str | None:
    if reply.has_error():
        return f"failed: {' '.join((reply.error.reason or 'no reason given').split())[-300:]}"
    if reply.metadata.src_node_id != node:
        return f"was answered for by node {reply.metadata.src_node_id}"
    return UNWILLING if DECLINED in reply.content else None


def _foreign(content: RecordDict, attempt: Attempt) -> str | None:
    own = content.config_records.get(ROUND)
    if own is None or own.get("token") != attempt.token:
        return "its answer belongs to another attempt or round"
    return None


def play_until_done(
    policy: RoundPolicy, t: int, play: Callable[[Attempt], T], kind: str = TRAINING
) -> T:
    """Plays round t until it is not abandoned, at most `policy.attempts` times."""
    called, most = sum_called(kind, t), policy.attempts
    for number in range(1, most + 1):
        try:
            return play(Attempt(t, number, secrets.token_hex(16), kind))
        except Abandoned as reason:
            LOG.warning("%s abandoned (attempt %d of %d): %s", called, number, most, reason)
    raise NoProgress(f"{NO_PROGRESS}: {called} was abandoned {most} times")
