# SPDX-License-Identifier: Apache-2.0
"""A client as one process that stays warm: it pulls a message, works on it, and pushes the answer.

    python -m agnosticfl.deploy.flower.warm SETTINGS

The connection is Flower's own (fleet protocol, node key, TLS, heartbeats, retries). Flower's
SuperNode sleeps for three seconds between two looks for messages and starts two processes for each;
here the client's own app is loaded once, before the first message, and keeps its examples and what
it compiled. Nothing else is ever loaded: the server's bundle of code is not even asked for.

SETTINGS is a `Settings` as JSON, on the command line: nothing in it is secret.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.app import Message

from agnosticfl.deploy.flower.connection import Connection, Stopped, connected, pulled, push
from agnosticfl.deploy.flower.own_app import OwnApp
from agnosticfl.deploy.node.pace import Pace
from agnosticfl.deploy.node.settings import Settings, from_json
from agnosticfl.errors import one_line_errors

LOG = logging.getLogger("flwr")

FAREWELL = 5.0  # seconds to sign off from the server
UNAUTHORIZED = 401
JUST_NOW = 2.0  # seconds


def one_message(connection: Connection, app: OwnApp) -> bool:
    """Pulls a message, has it answered and pushes the answer; False if there is none.

    One that cannot be read or whose answer cannot be sent is let go.
    """
    received = _received(connection)
    if received is None:
        return False
    head, tree = received
    kind, run = head.metadata.message_type, head.metadata.run_id
    LOG.info("Receiving: %s message of run %d", kind, run)
    try:
        message = pulled(connection, run, tree)
        begun = time.monotonic()
        reply = app.answer(message, connection)
        worked = time.monotonic() - begun
        push(connection, run, reply)
        LOG.info("Sent: answer to the %s message, after %.2f s of work", kind, worked)
    except Stopped:
        LOG.info("run %d is over; its %s message is not answered", run, kind)
    except Exception as error:
        LOG.error("the %s message of run %d is lost: %s", kind, run, error)
    return True


def _received(connection: Connection) -> tuple[Message, Any] | None:
    """The next message, without its content; None too if the server is in trouble just now."""
    try:
        return connection.receive()
    except Stopped:
        return None
    except httpx.HTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        LOG.warning("the server has trouble: %s", error)
        return None


def serve(connection: Connection, app: OwnApp, longest: float) -> NoReturn:
    """Answers messages for ever."""
    pace = Pace(longest)
    while True:
        now = time.monotonic()
        if one_message(connection, app):
            pace.answered(now)
        else:
            time.sleep(pace.pause())


class Leave(BaseException):
    """The operator wants this process to end."""


class Refused(Leave):
    """The server does not take this client's signature: Flower ends a client then, with no word."""


class Refusals(logging.Handler):
    """Sees what the server answers, in what httpx says of each request."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last = float("-inf")  # when a signature was refused

    def emit(self, record: logging.LogRecord) -> None:
        if UNAUTHORIZED in (record.args or ()):
            self.last = time.monotonic()

    def leave(self, *_: Any) -> NoReturn:
        """What a signal does. Flower's own comes right after the refusal."""
        raise Refused if time.monotonic() - self.last < JUST_NOW else Leave


def main(text: str) -> NoReturn:
    """Serves until a signal ends it (status 0), or the server does not let it in (1)."""
    settings = from_json(text)
    _log_with_times()
    refusals, requests = Refusals(), logging.getLogger("httpx")
    requests.addHandler(refusals)
    requests.setLevel(logging.INFO)
    requests.propagate = False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, refusals.leave)
    reason = ""
    try:
        app = OwnApp(Path(settings.app), settings.config)  # first: it takes seconds to load
        while not reason:
            reason = connected_once(settings, app)
    except Refused:
        reason = "error: the server does not take this client's signature; is its clock right?"
    except Leave:
        pass
    LOG.info(reason or "this client has left")
    logging.shutdown()
    os._exit(1 if reason else 0)  # there may be work under way that nobody wants any more


def _log_with_times() -> None:
    """One line for each event, with its time; Flower's own has colours in the place of times."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.handlers[:] = [lines]
    LOG.propagate = False


def connected_once(settings: Settings, app: OwnApp) -> str:
    """Serves as long as the server knows this node; why it cannot go on, or nothing if it can.

    A server that lost its memory knows the client's key, but gives it another number.
    """
    reason, was_in = "", False
    try:
        with connected(settings.server, Path(settings.authority), Path(settings.key)) as connection:
            was_in = True
            LOG.info("connected as node %d", connection.node)
            reason = _ended(connection, app, settings.longest)
    except Refused:
        if not was_in:
            raise
        LOG.warning("the server does not know this node any more; connecting again")
    return reason


def _ended(connection: Connection, app: OwnApp, longest: float) -> str:
    """Works in another thread, so that this one hears signals, until that fails; why it did."""
    failed: list[str] = []

    def work() -> None:
        try:
            serve(connection, app, longest)
        except Exception as error:
            failed.append(f"error: {error}")

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        worker.join()
    except Refused:
        raise
    except Leave:  # the server is told within some seconds, or not at all
        late = threading.Timer(FAREWELL, os._exit, [0])
        late.daemon = True
        late.start()
        raise
    return failed[0]


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1])
