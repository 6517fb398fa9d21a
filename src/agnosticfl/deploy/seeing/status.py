# SPDX-License-Identifier: Apache-2.0
"""What is known of a server now: two small files in its --state, and the one view made of them.

    status.json   the run: written by the ServerApp as it goes on
    server.json   the processes and the clients: written by `deploy server`

Each has one writer and is replaced whole. Nothing is in them that the server does not know anyway.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from agnosticfl.deploy.task import TRAINING, sum_called
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_json

STATUS, SERVER = "status.json", "server.json"
LINES = 20  # that are kept of who was lost, and of errors
POINTS = 200  # rounds that are kept; of a longer run, every second, fourth, …
STARTING, PLAYING, COMPLETE, FAILED = "starting", "playing", "complete", "failed"

T = TypeVar("T")


class Round(msgspec.Struct, frozen=True):
    """A round that is done."""

    round: int
    time: float | None  # when it was, in seconds since 1970; a private run does not tell
    seconds: float | None
    loss: tuple[float | None, ...]  # of each domain; None where it was absent
    domain_weights: tuple[float, ...]  # λ


class Lost(msgspec.Struct, frozen=True):
    """A client that did not take part to the end, and why as far as the server knows."""

    time: float
    round: int  # of an evaluation, the number of its question
    client: str
    why: str
    kind: str = TRAINING  # of the sum

    @property
    def during(self) -> str:
        """What it was lost in."""
        return sum_called(self.kind, self.round)


class Line(msgspec.Struct, frozen=True):
    """Something that went wrong."""

    time: float
    text: str


class Stage(msgspec.Struct, frozen=True):
    """A stage of a round: how many were asked and answered, and how long it took."""

    name: str
    asked: int
    came: int
    seconds: float


class Privacy(msgspec.Struct, frozen=True):
    """What differential privacy has cost so far, and what it may."""

    epsilon: float
    delta: float
    budget: float  # of epsilon


class Status(msgspec.Struct, frozen=True):
    """A run, as its ServerApp tells it."""

    run: str
    task: str
    method: str
    out: str  # the run folder
    secure: bool
    rounds: int  # that the run will have
    domains: tuple[str, ...]
    phase: str = STARTING
    begun: float = 0.0  # when this ServerApp started
    changed: float = 0.0  # when this was written
    done: int = 0  # rounds
    asking: str = ""  # what clients are asked, if not to train: "evaluation 3"
    attempt: int = 1  # at that, or at the round after them
    stage: str = ""  # under way
    stage_begun: float = 0.0
    asked: int = 0  # clients, in this stage
    history: tuple[Round, ...] = ()
    stages: tuple[Stage, ...] = ()  # of the last round that is done
    so_far: tuple[Stage, ...] = ()  # of the one under way
    bytes_down: int = 0  # of all rounds and evaluations
    bytes_up: int = 0
    privacy: Privacy | None = None
    lost: tuple[Lost, ...] = ()  # the last ones
    num_lost: int = 0  # all of them
    errors: tuple[Line, ...] = ()  # the last ones


class Client(msgspec.Struct, frozen=True):
    """A client that may connect."""

    name: str
    node: str  # its number, which has more digits than some readers of JSON keep
    status: str  # registered (never seen), online, offline


class Server(msgspec.Struct, frozen=True):
    """The server's processes and clients."""

    pid: int
    started: float  # of that process, as the system has it
    out: str
    address: str  # that clients connect to
    page: str = ""  # where it can be looked at; empty if nowhere
    clients: tuple[Client, ...] = ()
    said: tuple[Line, ...] = ()  # the last messages of `deploy server`


class View(msgspec.Struct, frozen=True):
    """All that there is to see."""

    now: float
    up: bool  # whether `deploy server` runs
    server: Server
    status: Status | None  # None before the first run has started

    @property
    def online(self) -> int:
        return sum(client.status == "online" for client in self.server.clients)

    @property
    def last(self) -> Round | None:
        """The last round that is done."""
        return self.status.history[-1] if self.status and self.status.history else None

    @property
    def in_words(self) -> str:
        """How it stands, in a few words."""
        status = self.status
        if status is not None and status.phase in (COMPLETE, FAILED):
            return status.phase
        if not self.up:
            return "not running"
        if status is None or status.phase == STARTING:
            return "starting"
        if status.done >= status.rounds and not status.asking:
            return "all rounds are done; the models are judged"
        what = status.asking or f"round {status.done + 1} of {status.rounds}"
        again = f", attempt {status.attempt}" if status.attempt > 1 else ""
        return f"{what}{again}: {status.stage or 'begins'}"


def write(folder: Path, name: str, value: Status | Server) -> None:
    """Replaces one of the two files."""
    write_json(folder / name, msgspec.to_builtins(value))


def read(folder: Path, name: str, kind: type[T]) -> T | None:
    """One of the two files; None if it is not there."""
    path = folder / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError, RecursionError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def view(folder: Path) -> View:
    """What is known now of the server with this --state."""
    server = read(folder, SERVER, Server)
    check(server is not None, f"{folder} is not the --state of a `deploy server`")
    assert server is not None
    status = read(folder, STATUS, Status)
    if status is not None and status.out != server.out:
        status = None  # of a run before
    return View(time.time(), is_up(server), server, status)


def is_up(server: Server) -> bool:
    """Whether its process is there: another one may have its number by now."""
    try:
        return abs(psutil.Process(server.pid).create_time() - server.started) < 1.0
    except psutil.Error:
        return False


def added(history: Iterable[Round], new: Round) -> tuple[Round, ...]:
    """The history with one more round: about `POINTS` at most, evenly spread, the last always.

    Which ones stay depends on their numbers only, so a run that is gone on with has the same.
    """
    step = 1
    while new.round > step * POINTS:
        step *= 2
    kept = (each for each in history if each.round < new.round and each.round % step == 0)
    return (*kept, new)


def round_of(record: Any) -> Round:
    """What is seen of a run's record."""
    return Round(
        round=record["round"],
        time=record["time"],
        seconds=record["seconds"],
        loss=tuple(record["loss"]),
        domain_weights=tuple(record["domain_weights"]),
    )
