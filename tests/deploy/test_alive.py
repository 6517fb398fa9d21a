# SPDX-License-Identifier: Apache-2.0
"""A client that looks for messages does not say beside that it is alive; one that works does."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agnosticfl.deploy.flower import alive, connection, delivering
from agnosticfl.deploy.flower.alive import INTERVAL, RECENT, Lively

constants: Any = importlib.import_module("flwr.common.constant")
theirs: Any = importlib.import_module("flwr.supernode.fleet_http_client").FleetHttpClient


def test_what_is_used_of_flower_s_inside_is_there():
    for name in ("ActivateNode", "PullMessages", "SendNodeHeartbeat"):
        assert list(inspect.signature(getattr(theirs, name)).parameters) == ["self", "request"]
    made = inspect.getsource(connection._http.http_request_response)
    assert "with FleetHttpClient.from_server_address(" in made
    assert "client.SendNodeHeartbeat(" in made
    assert issubclass(connection._http.FleetHttpClient, Lively)


def test_between_two_signs_of_life_a_node_is_not_taken_for_lost():
    """A client leaves out the last heartbeat before `RECENT`, and works from then on."""
    beats = constants.HEARTBEAT_DEFAULT_INTERVAL - constants.HEARTBEAT_CALL_TIMEOUT
    longest = beats * (constants.HEARTBEAT_BASE_MULTIPLIER + constants.HEARTBEAT_RANDOM_RANGE[1])
    assert delivering.HOLD < RECENT  # or a look would not stand for one
    assert RECENT + longest < constants.HEARTBEAT_PATIENCE * INTERVAL


class Server:
    """Answers what Flower's client sends, if it is up; on a clock of its own."""

    def __init__(self) -> None:
        self.up, self.now, self.asked = True, 1000.0, list[str]()

    def answer(self, *, path: str, response_type: Any, **_: Any) -> Any:
        self.asked.append(path.rpartition("/")[2])
        if not self.up:
            raise httpx.ConnectError("no way")
        return response_type()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(theirs, "_unary_unary", made.answer)
    monkeypatch.setattr(alive.time, "monotonic", lambda: made.now)
    return made


BEAT = "send-node-heartbeat"


def test_a_heartbeat_is_sent_only_when_no_look_was_answered_lately(server: Server):
    client = Lively("https://127.0.0.1:1")
    client.ActivateNode(None)
    for _ in range(3):
        server.now += RECENT - 1
        assert client.SendNodeHeartbeat(None).success
        client.PullMessages(None)
    assert BEAT not in server.asked
    server.now += RECENT + 1  # it works
    client.SendNodeHeartbeat(None)
    client.SendNodeHeartbeat(None)
    assert server.asked.count(BEAT) == 2


def test_a_heartbeat_that_failed_is_sent_whatever_else_was_answered(server: Server):
    """While the server was away it may have taken this node for lost."""
    client = Lively("https://127.0.0.1:1")
    client.PullMessages(None)
    server.now += RECENT + 1
    server.up = False
    call: Callable[[Any], Any]
    for call in (client.SendNodeHeartbeat, client.PullMessages):
        with pytest.raises(httpx.ConnectError):
            call(None)
    server.up = True
    client.PullMessages(None)
    client.SendNodeHeartbeat(None)
    assert server.asked.count(BEAT) == 2
    client.SendNodeHeartbeat(None)
    assert server.asked.count(BEAT) == 2
