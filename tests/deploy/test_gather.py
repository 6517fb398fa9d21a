# SPDX-License-Identifier: Apache-2.0
"""How long the server waits for replies, and for whose."""

import logging
import math
import time
from typing import Any

import pytest
from benchmarks.soak import stages
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower import patience as waiting
from agnosticfl.deploy.flower.federation import Attempt, Gathered, gather, request, stamp
from agnosticfl.deploy.flower.patience import LULL, PAUSES, Patience, silence
from agnosticfl.deploy.flower.records import ROUND
from tests.deploy.fake import FakeGrid

CLIENTS = 10
ATTEMPT = Attempt(1, 1, "token")
app = ClientApp()


@app.query()
def echo(message: Message, _context: Any) -> Message:
    return Message(RecordDict({ROUND: message.content[ROUND]}), reply_to=message)


def gathered(silent: int, seconds: float, **options: Any) -> tuple[Gathered, float]:
    """What comes if so many of ten clients never answer, and after how many seconds."""
    grid = FakeGrid([app] * CLIENTS, {place: lambda _: None for place in range(silent)})
    content = RecordDict({ROUND: stamp(ATTEMPT)})
    messages = [request(node, "query", content, seconds) for node in grid.get_node_ids()]
    begun = time.monotonic()
    found = gather(grid, messages, ATTEMPT, seconds=seconds, **options)
    return found, time.monotonic() - begun


def patience(least: int) -> Patience:
    """A round that goes on with so many of ten, of whom one may well be silent."""
    return Patience(0.1, lambda came: len(came) >= least)


@pytest.mark.parametrize(
    ("silent", "least", "seconds"),
    [(0, 10, 0.0), (1, 9, 1.0), (1, 10, math.inf), (3, 7, 3.0), (3, 8, math.inf), (10, 0, 3.0)],
)
def test_the_silent_have_as_long_as_the_round_can_bear(silent: int, least: int, seconds: float):
    came = range(CLIENTS - silent)
    for pause, took in ((0.1, 0.2), (0.1, 60.0), (LULL / PAUSES, 60.0), (20.0, 60.0), (20.0, 25.0)):
        expected = seconds * max(LULL, min(PAUSES * pause, took))
        found = silence(patience(least), CLIENTS, came, silent, pause, took)
        assert found == expected or silent == 0  # when nobody is, all has come


@pytest.mark.parametrize(("silent", "least"), [(0, 10), (1, 9), (2, 8), (2, 9)])
def test_who_is_silent_costs_no_whole_step_if_the_round_can_go_on(
    monkeypatch: pytest.MonkeyPatch, silent: int, least: int
):
    monkeypatch.setattr(waiting, "LULL", 0.1)
    found, seconds = gathered(silent, 1.0, patience=patience(least))
    assert len(found.replies) == CLIENTS - silent
    assert (seconds >= 1.0) == (CLIENTS - silent < least)
    assert (seconds >= 0.3) == (silent == 2)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_those_of_the_next_round_are_heard_before_this_stage_ends(
    monkeypatch: pytest.MonkeyPatch, silent: int
):
    """Beside two whose replies are enough, ten are asked, who reply later; one may be silent."""
    monkeypatch.setattr(federation, "LULL", 0.3)

    class Slow(FakeGrid):
        looks = 0

        def pull_messages(self, message_ids: Any) -> Any:
            self.looks += 1
            own = {"message-1", "message-2"}
            return super().pull_messages(own if self.looks == 1 else message_ids)

    grid = Slow([app] * 12, {place: lambda _: None for place in range(2, 2 + silent)})
    content = RecordDict({ROUND: stamp(ATTEMPT)})
    messages = [request(node, "query", content, 5.0) for node in grid.get_node_ids()]
    options: Any = {"enough": 2, "counted": grid.nodes[:2], "patience": patience(2)}
    begun = time.monotonic()
    assert len(gather(grid, messages, ATTEMPT, seconds=5.0, **options).replies) == 12 - silent
    assert (time.monotonic() - begun > 0.3) == (silent == 2)


def test_who_is_known_to_be_gone_gives_the_silent_no_more_time(monkeypatch: pytest.MonkeyPatch):
    """The SuperLink says it of a client half a minute after it was last heard of."""
    monkeypatch.setattr(waiting, "LULL", 0.6)

    class Late(FakeGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            found = list(super().pull_messages(message_ids))
            gone = [reply for reply in found if reply.has_error()]
            kept.extend(gone)
            ready = [kept.pop()] if kept and time.monotonic() - begun > 0.5 else []
            return [reply for reply in found if reply not in gone] + ready

    kept = list[Message]()
    failing = ClientApp()  # which knows no such message
    grid = Late([failing, app, app, app], {1: lambda _: None})
    content = RecordDict({ROUND: stamp(ATTEMPT)})
    messages = [request(node, "query", content, 5.0) for node in grid.get_node_ids()]
    begun = time.monotonic()
    found = gather(grid, messages, ATTEMPT, seconds=5.0, patience=Patience(0.5, lambda _: True))
    assert len(found.replies) == 2
    assert 0.6 < time.monotonic() - begun < 1.05  # and not 0.6 s after the news


def test_without_a_plan_all_are_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "LULL", 0.1)
    found, seconds = gathered(1, 1.0)
    assert len(found.replies) == 9
    assert seconds >= 1.0


def test_the_last_have_time_as_the_others_took_it(monkeypatch: pytest.MonkeyPatch):
    """Replies that are a while on their way: those of a slow network are not lost to its pace."""
    monkeypatch.setattr(waiting, "LULL", 0.01)

    class Slow(FakeGrid):
        begun = time.monotonic()

        def pull_messages(self, message_ids: Any) -> Any:
            ready = time.monotonic() - self.begun
            late = [n for n in message_ids if ready > (0.6 if n == "message-10" else 0.4)]
            return super().pull_messages(late)

    grid = Slow([app] * CLIENTS)
    content = RecordDict({ROUND: stamp(ATTEMPT)})
    messages = [request(node, "query", content, 5.0) for node in grid.get_node_ids()]
    grid.begun = time.monotonic()
    assert len(gather(grid, messages, ATTEMPT, seconds=5.0, patience=patience(9)).replies) == 10


def test_what_the_server_says_of_a_stage_can_be_read(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "flwr")
    gathered(2, 0.1, stage="masked vectors")
    found = stages(caplog.text)["masked vectors"]
    assert (found["times"], found["answered"], found["asked"]) == (1, 8, 10)
    assert 0 <= found["last_answer_after"] <= found["seconds"] < 5
