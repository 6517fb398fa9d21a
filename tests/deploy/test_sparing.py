# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that does less at each request, and nothing less for those whom it is for."""

import asyncio
import contextlib
import importlib
import inspect
import threading
import time
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from agnosticfl.deploy.flower.sparing import (
    LAYERS,
    Only,
    sparing,
    taking_turns,
    with_own_layers,
)

mixin: Any = importlib.import_module("flwr.supercore.sql_mixin").SqlMixin
store: Any = importlib.import_module("flwr.supercore.object_store.sql_object_store").SqlObjectStore
main: Any = importlib.import_module("flwr.superlink.main")
theirs: Any = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate").SqlLinkState


def test_what_is_used_of_flower_s_inside_is_there():
    assert list(inspect.signature(theirs._cleanup_expired_task_tokens).parameters) == ["self"]
    assert list(inspect.signature(theirs.store_traffic).parameters) == [
        *("self", "run_id", "bytes_sent", "bytes_recv")
    ]
    names = [getattr(layer.cls, "__name__", "") for layer in main._get_middleware()]
    assert set(LAYERS) < set(names)
    assert "middleware=_get_middleware()" in inspect.getsource(main.create_app)
    assert list(inspect.signature(theirs.get_run_status).parameters) == ["self", "run_ids"]
    assert theirs.session is mixin.session
    assert store.session is mixin.session


def test_bytes_are_added_up_and_dead_tasks_looked_for_once_a_second():
    now, done = [100.0], list[Any]()

    class State:
        def _cleanup_expired_task_tokens(self) -> None:
            done.append("cleaned")

        def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            done.append((run_id, bytes_sent, bytes_recv))

    state = sparing(State, lambda: now[0])()
    for _ in range(3):
        state._cleanup_expired_task_tokens()
        for run in (1, 2):
            state.store_traffic(run, bytes_sent=10, bytes_recv=run)
    assert done == ["cleaned", (1, 10, 1)]
    now[0] += 1.0
    state.store_traffic(2, bytes_sent=1, bytes_recv=0)
    state._cleanup_expired_task_tokens()
    assert done[2:] == [(2, 31, 6), (1, 20, 2), "cleaned"]


def test_a_run_that_goes_on_is_looked_at_once_a_second_and_one_that_does_not_each_time():
    now, asked = [100.0], list[set[int]]()
    going = {1: "running", 2: "running", 3: "pending"}

    class State:
        def get_run_status(self, run_ids: set[int]) -> dict[int, Any]:
            asked.append(run_ids)
            return {run: SimpleNamespace(status=going[run]) for run in run_ids}

    state = sparing(State, lambda: now[0])()

    def status(*runs: int) -> list[str]:
        return [found.status for found in state.get_run_status(set(runs)).values()]

    assert status(1) == status(1) == ["running"]
    assert asked == [{1}]
    assert status(3) == status(3) == ["pending"]
    assert asked == [{1}, {3}, {3}]
    assert status(1, 2) == status(1, 2) == ["running", "running"]
    assert status() == []
    assert len(asked) == 6
    assert status(1) == ["running"]
    going[1] = "finished"
    now[0] += 1.0
    assert status(1) == status(1) == ["finished"]


def test_transactions_of_several_threads_take_turns_and_those_of_one_nest():
    within, most = list[int](), list[int]()

    class Database:
        @contextlib.contextmanager
        def session(self) -> Generator[None]:
            within.append(1)
            most.append(len(within))
            time.sleep(0.005)
            yield
            within.pop()

    database: Any = Database
    database.session = taking_turns(database.session)

    def work() -> None:
        for _ in range(3):
            with database().session(), database().session():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 2
    assert len(most) == 24


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_gone_by_would_do_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    """Flower's own code, with all in place that could make it do something."""
    monkeypatch.setenv("FLWR_TRACING_ENABLED", "1")
    (layer,) = (one.cls for one in main._get_middleware() if one.cls.__name__ == name)
    made, answer = layer(None), Response("answer")
    made._license_plugin = SimpleNamespace(check_license=lambda: False)
    app = SimpleNamespace(state=SimpleNamespace(control_event_log_plugin=object()))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/fleet/pull-messages",
        "headers": [],
        "query_string": b"",
        "server": ("127.0.0.1", 1),
        "app": app,
    }
    before = list(answer.raw_headers)

    async def call_next(_: Any) -> Response:
        return answer

    assert asyncio.run(made.dispatch(Request(scope), call_next)) is answer
    assert answer.raw_headers == before


def test_each_request_goes_through_the_layers_that_are_for_it():
    passed = list[str]()

    def made(name: str) -> Any:
        class Layer:
            def __init__(self, app: Any):
                self.app = app

            async def __call__(self, *call: Any) -> None:
                passed.append(name)
                await self.app(*call)

        Layer.__name__ = name
        return SimpleNamespace(cls=Layer)

    async def end(*_: Any) -> None:
        passed.append("end")

    names = ["Other", *LAYERS]
    layers = with_own_layers(lambda: [made(name) for name in names])()
    app: Any = end
    for layer in reversed(layers):
        app = layer.cls(app, *getattr(layer, "args", ()))
    for beginning in ("/v1/fleet/", "/v1/control/", "/v1/runtime/"):
        asyncio.run(app({"type": "http", "path": f"{beginning}x"}, None, None))
        wanted = [name for name in names if LAYERS.get(name, beginning) == beginning]
        assert passed == [*wanted, "end"]
        passed.clear()
    asyncio.run(app({"type": "lifespan"}, None, None))
    assert passed == ["Other", "end"]
    assert all(layer.cls is Only for layer in layers[1:])
