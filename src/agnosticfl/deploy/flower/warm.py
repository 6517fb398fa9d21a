# SPDX-License-Identifier: Apache-2.0
"""A client as one process that stays warm: it pulls a message, works on it, and pushes the answer.

    python -m agnosticfl.deploy.flower.warm SETTINGS

The connection is Flower's own (fleet protocol, node key, TLS, retries). Flower's
SuperNode sleeps for three seconds between two looks for messages and starts two processes for each;
here the client's own app is loaded once, before the first message, and keeps its examples and what
it compiled. Nothing else is ever loaded: the server's bundle of code is not even asked for.

SETTINGS is a `Settings` as JSON, on the command line: nothing in it is secret.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.app import Message

from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.flower.connection import (
    Connection,
    NotLetIn,
    Stopped,
    connected,
    pull,
    push,
)
from agnosticfl.deploy.flower.own_app import OwnApp
from agnosticfl.deploy.node.pace import Pace
from agnosticfl.deploy.node.reach import Reached, Waiting, reach
from agnosticfl.deploy.node.settings import Settings
from agnosticfl.deploy.process_settings import from_json
from agnosticfl.deploy.seeing.health import ANSWERED
from agnosticfl.deploy.served import Served, differing_terms
from agnosticfl.deploy.task import FILE, read_task
from agnosticfl.errors import one_line_errors

LOG = logging.getLogger("flwr")

FAREWELL = 5.0  # seconds to sign off from the server
UNAUTHORIZED = 401
JUST_NOW = 2.0  # seconds
HELD = 1.0  # seconds after which a look was held by the server until there was something to see
SILENCE = 30.0  # seconds without an answer of the server, after which a client asks why
LOOK = 5.0  # seconds between two looks at that


def answer_next(connection: Connection, app: OwnApp) -> bool:
    """Pulls the next message, has it answered and pushes the answer; False if there is none.

    One that cannot be read or whose answer cannot be sent is let go.
    """
    received = _receive(connection)
    if received is None:
        return False
    head, tree = received
    kind, run = head.metadata.message_type, head.metadata.run_id
    LOG.info("Receiving: %s message of run %d", kind, run)
    try:
        message = pull(connection, run, tree)
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


def _receive(connection: Connection) -> tuple[Message, Any] | None:
    """Pulls the next message without its content; None, too, if the server has trouble just now."""
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
        if answer_next(connection, app):
            pace.note_answer(now)
        elif time.monotonic() - now < HELD:
            time.sleep(pace.pause())


class Leave(BaseException):
    """The operator wants this process to end."""


class Refused(Leave):
    """The server does not take this client's signature: Flower ends a client then, with no word."""


class Answers(logging.Handler):
    """Sees what the server answers, in what httpx says of each request."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.refused = float("-inf")  # when a signature was
        self.last = time.monotonic()  # when there was any

    def emit(self, record: logging.LogRecord) -> None:
        self.last = time.monotonic()
        if UNAUTHORIZED in (record.args or ()):
            self.refused = self.last

    def leave(self, *_: Any) -> NoReturn:
        """What a signal does. Flower's own comes right after the refusal."""
        raise Refused if time.monotonic() - self.refused < JUST_NOW else Leave


def main(text: str, wait: Callable[[Settings, Waiting], str] | None = None) -> NoReturn:
    """Serves until a signal ends it (status 0), or the server does not let it in (1).

    Args:
      wait: returns when the server lets the client in, or with why it never will.
    """
    settings = from_json(text, Settings, "the client's")
    _log_with_times()
    answers, requests = Answers(), logging.getLogger("httpx")
    requests.addHandler(answers)
    requests.setLevel(logging.INFO)
    requests.propagate = False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, answers.leave)
    reason, waiting = "", Waiting()
    try:
        app = OwnApp(Path(settings.app), settings.config)  # first: it takes seconds to load
        while not reason:
            reason = (wait or wait_until_let_in)(settings, waiting)
            reason = reason or serve_connected(settings, app, answers, waiting)
    except Leave:
        pass
    if reason:
        LOG.error("error: %s", reason)
    else:
        LOG.info("this client has left")
    logging.shutdown()
    os._exit(1 if reason else 0)  # there may be work under way that nobody wants any more


def _log_with_times() -> None:
    """One line for each event, with its time; Flower's own has colours in place of times."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.handlers[:] = [lines]
    LOG.propagate = False


def wait_until_let_in(settings: Settings, waiting: Waiting) -> str:
    """Waits until the server lets this client in; returns why, if waiting does not help."""
    while True:
        reached = knock(settings)
        wrong = reached.wrong
        if wrong is None:
            for line in _differences(settings, reached.served or Served()):
                LOG.warning("%s; rounds in which they differ are not for this client", line)
            return ""
        if not wrong.waiting:
            return wrong.line()
        _say(waiting, f"{wrong.line()}; it is tried again")
        time.sleep(waiting.next())


def knock(settings: Settings) -> Reached:
    """Whether the server would let this client in."""
    return reach(settings.server, Path(settings.authority), Path(settings.key))


def _say(waiting: Waiting, line: str) -> None:
    if waiting.new(line):
        LOG.warning(line)


def _differences(settings: Settings, served: Served) -> list[str]:
    """In what the task and the roster here are not those of the server."""
    from agnosticfl.deploy.agree import terms_of
    from agnosticfl.deploy.roster import read_roster

    folder = Path(settings.app) / PACKAGE
    if not served.terms or not (folder / FILE).exists():
        return []
    own = settings.config.get("roster")
    secure = own is not None and "roster" in served.terms
    return differing_terms(
        terms_of(read_task(folder), read_roster(Path(str(own))) if secure else None), served.terms
    )


def serve_connected(settings: Settings, app: OwnApp, answers: Answers, waiting: Waiting) -> str:
    """Serves as long as the server knows this node; why it cannot go on, or nothing if it can.

    A server that lost its memory knows the client's key, but gives it another number.
    """
    was_in = False
    try:
        with connected(settings.server, Path(settings.authority), Path(settings.key)) as connection:
            was_in = True
            waiting.reset()
            LOG.info("connected as node %d", connection.node)
            _note_answer()
            return _serve_until_failure(connection, app, settings, answers)
    except NotLetIn as error:  # its key is registered in these seconds, or the SuperLink restarts
        _say(waiting, f"{error}; it is tried again")
        time.sleep(waiting.next())
    except Refused:
        if not was_in:
            wrong = knock(settings).wrong
            return wrong.line() if wrong else "the server does not take this client's signature"
        LOG.warning("the server does not know this node any more; connecting again")
    return ""


def _serve_until_failure(
    connection: Connection, app: OwnApp, settings: Settings, answers: Answers
) -> str:
    """Serves in another thread, so that this one hears signals, until that fails; returns why.

    Flower tries for ever to reach a server that does not answer; meanwhile this one finds out why.
    """
    failed: list[str] = []

    def work() -> None:
        try:
            serve(connection, app, settings.longest)
        except Exception as error:
            failed.append(str(error))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    silence = Waiting()
    try:
        while worker.is_alive():
            worker.join(LOOK)
            if time.monotonic() - answers.last > max(SILENCE, 2 * settings.longest):
                wrong = knock(settings).wrong
                if wrong and not wrong.waiting:
                    return wrong.line()
                if wrong:
                    _say(silence, f"{wrong.line()}; it is tried again")
            else:
                _note_answer()
        return _why(settings, failed[0])
    except Refused:
        raise
    except Leave:  # the server is told within some seconds, or not at all
        late = threading.Timer(FAREWELL, os._exit, [0])
        late.daemon = True
        late.start()
        raise


def _note_answer() -> None:
    """The server answers; whoever watches over this process sees it (`seeing.health`)."""
    home = os.environ.get("FLWR_HOME")
    with contextlib.suppress(OSError):  # a full disc ends nothing here
        if home:
            (Path(home) / ANSWERED).touch()


def _why(settings: Settings, failed: str) -> str:
    """Why a client that was in cannot go on; nothing if it can try again."""
    wrong = knock(settings).wrong
    if wrong is None or wrong.what in ("address", "proxy"):
        LOG.warning("%s; connecting again", failed)
        time.sleep(Waiting.FIRST)
        return ""
    return wrong.line()


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1])
