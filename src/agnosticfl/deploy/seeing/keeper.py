# SPDX-License-Identifier: Apache-2.0
"""How the ServerApp keeps status.json: from what it writes to its log.

Lines of the log that are more than words have fields, `LOG.info("… %(round)d", {"event": …})`. The
same fields make the status, so nothing is told twice and the rounds know of no status:

    waiting     round, kind, attempt, connected, needed   for enough clients
    stage       round, kind, attempt, stage, asked        messages are out
    answers     the same, came, seconds, last             and their answers are in
    lost        round, kind, client, why                  a client that does not stay to the end
    evaluation  bytes_down, bytes_up                      by clients is done
    round       round, record                             is done
"""

import contextlib
import functools
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agnosticfl.deploy.seeing.logs import Named, log_file
from agnosticfl.deploy.seeing.status import (
    COMPLETE,
    FAILED,
    LINES,
    PLAYING,
    STATUS,
    Line,
    Lost,
    Privacy,
    Stage,
    Status,
    added,
    read,
    round_of,
    write,
)
from agnosticfl.deploy.task import TRAINING, FederatedTask, sum_called
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.runs.records import Record, bytes_of, read_records
from agnosticfl.runs.resolve import title

SOON = 1.0  # seconds between two writings of what is not a step of the round
LONGEST = 300  # characters of a line that is kept

Fields = Mapping[str, Any]


def begun(status: Status, records: Sequence[Record], now: float) -> Status:
    """A run that is about to be played, after the rounds of `records`."""
    rounds = [round_of(record) for record in records]
    return msgspec.structs.replace(
        status,
        begun=now,
        done=rounds[-1].round if rounds else 0,
        history=functools.reduce(added, rounds, ()),
        bytes_down=sum(bytes_of(record).down for record in records),
        bytes_up=sum(bytes_of(record).up for record in records),
    )


def told(status: Status, fields: Fields, now: float) -> Status:
    """The status after a line of the log with these fields."""
    match fields.get("event"):
        case "waiting":
            stage = f"waiting for clients: {fields['connected']} of {fields['needed']}"
            return _at(status, fields, now, stage, asked=0)
        case "stage":
            return _at(status, fields, now, fields["stage"], asked=fields["asked"])
        case "answers":
            names = ("asked", "came", "seconds")
            what = f"{fields['stage']}{f', {status.asking}' * bool(status.asking)}"
            done = Stage(what, *(fields[name] for name in names))
            return msgspec.structs.replace(status, so_far=(*status.so_far, done))
        case "lost":
            return _lost(status, fields, now)
        case "evaluation":
            done = msgspec.structs.replace(status, asking="", attempt=1, stage="")
            return _sent(done, fields["bytes_down"], fields["bytes_up"])
        case "round":
            record = fields["record"]
            return _sent(_done(status, record), record["bytes_down"], record["bytes_up"])
        case _:
            return status


def _at(status: Status, fields: Fields, now: float, stage: str, asked: int) -> Status:
    kind = fields.get("kind", TRAINING)
    return msgspec.structs.replace(
        status,
        phase=PLAYING,
        asking="" if kind == TRAINING else sum_called(kind, fields["round"]),
        attempt=fields["attempt"],
        stage=stage,
        stage_begun=now,
        asked=asked,
    )


def _lost(status: Status, fields: Fields, now: float) -> Status:
    """A client counts once in a sum, with all reasons that were given for it."""
    round, client, kind = fields["round"], fields["client"], fields.get("kind", TRAINING)
    name = (kind, round, client)
    before = [lost for lost in status.lost if (lost.kind, lost.round, lost.client) == name]
    others = [lost for lost in status.lost if lost not in before]
    known = [why for lost in before for why in lost.why.split("; ")]
    reasons = dict.fromkeys([*known, fields["why"]])
    lost = Lost(now, round, client, "; ".join(reasons)[:LONGEST], kind)
    return msgspec.structs.replace(
        status,
        lost=(*others, lost)[-LINES:],
        num_lost=status.num_lost + (not before),
    )


def _done(status: Status, record: Record) -> Status:
    return msgspec.structs.replace(
        status,
        phase=PLAYING,
        done=record["round"],
        asking="",
        attempt=1,
        stage="",
        history=added(status.history, round_of(record)),
        stages=status.so_far,
        so_far=(),
        privacy=spent(Path(status.out)),
    )


def _sent(status: Status, down: int, up: int) -> Status:
    return msgspec.structs.replace(
        status, bytes_down=status.bytes_down + down, bytes_up=status.bytes_up + up
    )


def spent(out: Path) -> Privacy | None:
    """What a private run has spent, as its folder says."""
    try:
        statement = read_json(out / "privacy.json")
        return Privacy(
            epsilon=statement["epsilon"],
            delta=statement["delta"],
            budget=statement["budget"]["epsilon"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Keeper(logging.Handler):
    """Keeps the status of a run in the folder `state`, from the lines of a log.

    A disc that is full must not end the run: what cannot be written now is written later.
    """

    def __init__(self, state: Path, status: Status):
        super().__init__(logging.INFO)
        self.state, self.status, self.written = state, status, 0.0
        self.keep()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record)
        except Exception:  # what is only seen must not end what is done
            self.handleError(record)

    def _take(self, record: logging.LogRecord) -> None:
        fields = record.args if isinstance(record.args, Mapping) else {}
        before = self.status
        self.status = told(before, fields, record.created)
        if record.levelno >= logging.WARNING:
            line = Line(record.created, record.getMessage()[:LONGEST])
            errors = (*self.status.errors, line)[-LINES:]
            self.status = msgspec.structs.replace(self.status, errors=errors)
        step = fields.get("event") in ("waiting", "stage", "evaluation", "round")
        if self.status is not before and (step or time.monotonic() - self.written > SOON):
            self.keep()

    def end(self, error: BaseException | None) -> None:
        """The run is complete, or ended by `error`."""
        now, phase = time.time(), COMPLETE if error is None else FAILED
        errors = self.status.errors
        if error is not None:
            errors = (*errors, Line(now, f"{type(error).__name__}: {error}"[:LONGEST]))[-LINES:]
        self.status = msgspec.structs.replace(self.status, phase=phase, stage="", errors=errors)
        self.keep()

    def keep(self) -> None:
        self.written = time.monotonic()
        self.status = msgspec.structs.replace(self.status, changed=time.time())
        with contextlib.suppress(OSError):
            write(self.state, STATUS, self.status)


@contextlib.contextmanager
def watched(
    log: logging.Logger, task: FederatedTask, out: Path, state: str, form: str
) -> Generator[None]:
    """Writes what is said while the block runs into OUT.log, and the run's status into `state`.

    Args:
      state: a folder, or "" for no status and no names.
      form: of the log's lines, text or json.
    """
    filters, handlers = list[logging.Filter](), [log_file(out.with_name(f"{out.name}.log"), form)]
    keeper = None
    if state:
        filters.append(Named(Path(state)))
        status = _remembered(Path(state), first(task, out))
        keeper = Keeper(Path(state), begun(status, read_records(out), time.time()))
        handlers.append(keeper)
    for each in filters:
        log.addFilter(each)
    for handler in handlers:
        log.addHandler(handler)
    error = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        if keeper is not None:
            keeper.end(error)
        for each in filters:
            log.removeFilter(each)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


def _remembered(state: Path, status: Status) -> Status:
    """With what an earlier ServerApp of the same run has met."""
    with contextlib.suppress(BadInput):
        before = read(state, STATUS, Status)
        if before is not None and (before.run, before.out) == (status.run, status.out):
            kept = {name: getattr(before, name) for name in ("errors", "lost", "num_lost")}
            return msgspec.structs.replace(status, **kept)
    return status


def first(task: FederatedTask, out: Path) -> Status:
    """What is known of a run before it begins."""
    config = task.config
    return Status(
        run=task.run,
        task=config.task,
        method=title(config),
        out=str(out),
        secure=config.secure is not None,
        rounds=config.rounds,
        domains=tuple(task.domains),
        privacy=spent(out),
    )
