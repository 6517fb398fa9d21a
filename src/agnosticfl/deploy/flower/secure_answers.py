# SPDX-License-Identifier: Apache-2.0
"""A client's side of secure rounds over Flower: its keys, its memory, and one answer per message.

Every message is worked on by a process of its own, so what a client must not forget within a round
lies in a file, which is on the disc before the answer leaves: a client that was killed in between
does not answer twice.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from agnosticfl.deploy import wire
from agnosticfl.deploy.agree import agreement_of, of_kind
from agnosticfl.deploy.flower.records import (
    AHEAD,
    ARRAYS,
    DECLINED,
    REQUEST,
    ROUND,
    SECURE,
    to_arrays,
)
from agnosticfl.deploy.keys import read_signing_key
from agnosticfl.deploy.node import consent
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.task import TRAINING, FederatedTask
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.files import sync
from agnosticfl.secagg import member as protocol
from agnosticfl.secagg.agreement import Agreement, Member, member
from agnosticfl.secagg.memory import IDLE, State, dump, load
from agnosticfl.secagg.messages import Boxes, Join, Peers, Refused, Setup, Sum, kind_of

# What a client is asked between its joining and its vector: until then it can still decline.
BEFORE_VECTOR = [kind.__name__ for kind in (Setup, Peers, Boxes)]


def member_settings(
    roster: Path, key: Path, fewest: int, dishonest: int, alone: str
) -> dict[str, str | int]:
    """What a node is told of its place in secure rounds, as `own_member` reads it.

    Args:
      key: its node key; the one that signs lies beside it.
    """
    return {
        "roster": str(roster),
        "signing-key": str(key.with_suffix(".sign").resolve()),
        "fewest": fewest,
        "dishonest": dishonest,
        "alone": alone,
    }


def own_member(
    task: FederatedTask,
    node_config: Mapping[str, Any],
    held: Sequence[str] = (),
    kind: str = TRAINING,
) -> Member:
    """This node's place in the federation: its own roster, smallest sum and distrust.

    Args:
      held: domains of which it has examples; its entry in the roster must state them.
      kind: of the sums that it is asked for.
    """
    for name in ("roster", "signing-key"):
        check(name in node_config, f"this node was started without its {name}")
    usual = Agreement._field_defaults
    agreement = agreement_of(
        task,
        read_roster(Path(str(node_config["roster"]))),
        fewest=int(node_config.get("fewest", usual["fewest"])),
        dishonest=int(node_config.get("dishonest", usual["dishonest"])),
    )
    alone = [name for name in str(node_config.get("alone", "")).split(",") if name]
    for name in alone:
        choose(name, task.domains, "--alone")
    key = read_signing_key(Path(str(node_config["signing-key"])))
    own = member(of_kind(agreement, task.config, kind), key, alone)
    consent.check_stated(held, agreement.holdings[own.place])
    return own


def secure_answer(
    own: Member,
    memory: Path,
    message: Message,
    work: Callable[[int], tuple[Mapping[str, np.ndarray], Collection[str]]],
    declines: Callable[[bool], str | None] = lambda _: None,
) -> RecordDict:
    """The answer to one request of a secure round, or `Refused`.

    With it the answer to a request of the next round, if there is one beside it: the two are kept
    together, and no trouble with the next round is one of this.

    Args:
      memory: the file in which this client keeps what it must remember.
      work: number of clients in the round -> its contribution, packed, if it is asked for, and the
        domains with weight in it.
      declines: whether it is asked to join the next round, or has -> why it takes no part in that;
        None if it does.
    """
    t: Any = message.content.config_records[ROUND]["round"]

    def own_work(asked: Sum, cohort: Sequence[int]) -> protocol.Work:
        if t != asked.t:
            raise Refused(f"the work is for round {t}, and the sum for round {asked.t}")
        packed, weighty = work(len(cohort))
        check(set(packed) == {"int32"}, f"a secure sum is one of int32, and not of {set(packed)}")
        return protocol.Work(packed["int32"].view(np.uint32), weighty)

    record = message.content.config_records[SECURE]
    request = _request(record, REQUEST)
    given = message.content.array_records.get(ARRAYS)
    sent = wire.digest(t, to_arrays(given)) if given is not None else b""
    now = time.time_ns() // 10**6
    with _alone(memory):
        state, reply = protocol.answer(own, _remembered(memory), request, now, own_work, sent)
        replies: dict[str, Any] = {REQUEST: reply}
        if AHEAD in record:
            state, replies[AHEAD] = _ahead(own, state, _request(record, AHEAD), now, declines)
        _remember(memory, dump(state))
    return RecordDict({SECURE: ConfigRecord(replies)})


def can_decline(message: Message) -> bool:
    """Whether a message of a secure round is one at which a client that joined can still leave."""
    return kind_of(_request(message.content.config_records[SECURE], REQUEST)) in BEFORE_VECTOR


def _request(record: ConfigRecord, name: str) -> bytes:
    request = record[name]
    check(isinstance(request, bytes), "the request of a secure round is not in bytes")
    return request  # type: ignore[return-value]


def _ahead(
    own: Member, state: State, request: bytes, now: int, declines: Callable[[bool], str | None]
) -> tuple[State, bytes | str]:
    """The answer to a request of the next round, or why there is none."""
    try:
        if declines(kind_of(request) == Join.__name__) is not None:
            return state, DECLINED  # why is nobody's business
        return protocol.answer(own, state, request, now)
    except Refused as error:
        return state, f"refused: {error}"


@contextlib.contextmanager
def _alone(memory: Path) -> Generator[None]:
    """One request at a time."""
    with memory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remembered(memory: Path) -> State:
    """What is in the file; without it a client would answer twice, so none is made up for it."""
    if not memory.exists():
        return IDLE
    try:
        return load(memory.read_bytes())
    except BadInput as error:
        raise BadInput(f"{memory}, which says what this client has answered, {error}") from None


def _remember(memory: Path, content: bytes) -> None:
    """Replaces the file in one step, safe from a power cut; only its owner can read it."""
    temporary = memory.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(memory)
    sync(memory.parent)
