# SPDX-License-Identifier: Apache-2.0
"""How long the server waits for replies, and for whose."""

import time
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.federation import Attempt, Gathered, gather, request, stamp
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


@pytest.mark.parametrize(("silent", "replies"), [(0, 10), (1, 9), (2, 8)])
def test_who_is_silent_costs_no_whole_step_if_no_more_are_lost_than_planned(
    monkeypatch: pytest.MonkeyPatch, silent: int, replies: int
):
    monkeypatch.setattr(federation, "LULL", 0.1)
    found, seconds = gathered(silent, 1.5, most=9)
    assert len(found.replies) == replies
    assert (seconds >= 1.5) == (silent == 2)


def test_without_a_plan_all_are_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "LULL", 0.1)
    found, seconds = gathered(1, 1.0)
    assert len(found.replies) == 9
    assert seconds >= 1.0


def test_the_last_have_as_long_again_as_the_others_took(monkeypatch: pytest.MonkeyPatch):
    """Replies that are a while on their way: those of a slow network are not lost to its pace."""
    monkeypatch.setattr(federation, "LULL", 0.01)

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
    assert len(gather(grid, messages, ATTEMPT, seconds=5.0, most=9).replies) == 10
