# SPDX-License-Identifier: Apache-2.0
"""A client's side of secure rounds over Flower: its keys, its memory, and one answer per message.

Every message is worked on by a process of its own, so what a client must not forget within a round
lies in a file, which is on the disc before the answer leaves: a client that was killed in between
does not answer twice.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from agnosticfl.deploy import wire
from agnosticfl.deploy.flower.records import ARRAYS, PLACE, REQUEST, SECURE, to_arrays
from agnosticfl.deploy.keys import read_roster, read_signing_key
from agnosticfl.errors import BadInput, check
from agnosticfl.files import sync
from agnosticfl.runs.config import Config
from agnosticfl.secagg import member as protocol
from agnosticfl.secagg.agreement import Agreement, Member, member


def run_name(config: Config) -> bytes:
    """What a run is called in the keys and signatures of its rounds."""
    return f"{config.task}-{config.algorithm}-seed{config.seed}".encode()[:64]


def own_member(config: Config, node_config: Mapping[str, Any]) -> Member:
    """This node's place in the federation: its own roster, smallest sum and distrust."""
    for name in ("roster", "signing-key"):
        check(name in node_config, f"this node was started without its {name}")
    agreement = Agreement(
        run=run_name(config),
        roster=read_roster(Path(str(node_config["roster"]))),
        fewest=int(node_config.get("fewest", Agreement._field_defaults["fewest"])),
        dishonest=int(node_config.get("dishonest", Agreement._field_defaults["dishonest"])),
    )
    return member(agreement, read_signing_key(Path(str(node_config["signing-key"]))))


def introduction(own: Member, memory: Path) -> RecordDict:
    """What a client says that joins: which of the registered keys is its own.

    A round that it was in is over by that, whether it ended or not, and its secrets are forgotten.
    """
    with _alone(memory):
        _remember(memory, protocol.dump(protocol.forget(_remembered(memory))))
    return RecordDict({SECURE: ConfigRecord({PLACE: own.place})})


def secure_answer(
    own: Member,
    memory: Path,
    message: Message,
    work: Callable[[], Mapping[str, np.ndarray]] | None = None,
) -> RecordDict:
    """The answer to one request of a secure round, or `Refused`.

    Args:
      memory: the file in which this client keeps what it must remember.
      work: gives its contribution, packed, if it is asked for.
    """

    def vector() -> np.ndarray:
        packed = work() if work else {}
        check(set(packed) == {"int32"}, f"a secure sum is one of int32, and not of {set(packed)}")
        return packed["int32"].view(np.uint32)

    request = message.content.config_records[SECURE][REQUEST]
    given = message.content.array_records.get(ARRAYS)
    sent = wire.digest(to_arrays(given)) if given is not None else b""
    check(isinstance(request, bytes), "the request of a secure round is not in bytes")
    with _alone(memory):
        state, reply = protocol.answer(own, _remembered(memory), request, vector, sent)  # type: ignore[arg-type]
        _remember(memory, protocol.dump(state))
    return RecordDict({SECURE: ConfigRecord({REQUEST: reply})})


@contextlib.contextmanager
def _alone(memory: Path) -> Generator[None]:
    """One request at a time."""
    with memory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remembered(memory: Path) -> protocol.State:
    """What is in the file; without it a client would answer twice, so none is made up for it."""
    if not memory.exists():
        return protocol.IDLE
    try:
        return protocol.load(memory.read_bytes())
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
