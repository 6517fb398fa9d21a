# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that does less at each request.

- For each part of a message, Flower looks whether its run goes on and for tasks that have died, and
  adds up bytes, in transactions of which three write: here once a second (`sparing`).
- Whoever finds its database taken sleeps for some time before it tries again, mostly in vain where
  many do: here its threads take turns (`taking_turns`).
- Each request goes through nine layers, of which most are for another interface than its own and
  only hand it on, which costs more than all else: here it goes by them (`with_own_layers`).

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_sparing.py` fails if it changes.
"""

import contextlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

SECOND = 1.0
RUNNING: str = importlib.import_module("flwr.common.constant").Status.RUNNING
CONTROL, RUNTIME = "/v1/control/", "/v1/runtime/"

# Layers of Flower's, and the beginning of the paths for which each does anything.
LAYERS = {
    "ControlSensitiveResponseMiddleware": CONTROL,
    "ControlAuthenticationMiddleware": CONTROL,
    "ControlLicenseMiddleware": CONTROL,
    "ControlEventLogMiddleware": CONTROL,
    "RuntimeTracingMiddleware": RUNTIME,
}


def sparing(base: Any, clock: Callable[[], float] = time.monotonic) -> Any:
    """`base`, a state of Flower's, that writes less often."""

    class Sparing(base):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self._sent, self._received = Counter[int](), Counter[int]()  # bytes of runs
            self._cleaned = self._counted = float("-inf")  # when that was last done
            self._counting = threading.Lock()
            self._going_on: dict[int, tuple[float, Any]] = {}  # runs, since when that is known

        def get_run_status(self, run_ids: set[int]) -> dict[int, Any]:
            """Of one run that goes on, as it was a second ago at most."""
            since, status = self._going_on.get(min(run_ids, default=0), (float("-inf"), None))
            if len(run_ids) == 1 and clock() - since < SECOND:
                return {min(run_ids): status}
            found: dict[int, Any] = super().get_run_status(run_ids)
            goes_on = {run: status for run, status in found.items() if status.status == RUNNING}
            self._going_on = {run: (clock(), status) for run, status in goes_on.items()}
            return found

        def _cleanup_expired_task_tokens(self) -> None:
            """A task that has died is found a second later, after the half minute that it has."""
            if clock() - self._cleaned >= SECOND:
                self._cleaned = clock()
                super()._cleanup_expired_task_tokens()

        def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            """Only for whoever asks Flower how much it was; the last second's is not in it."""
            with self._counting:
                self._sent[run_id] += bytes_sent
                self._received[run_id] += bytes_recv
                if clock() - self._counted < SECOND:
                    return
                self._counted, sent, received = clock(), self._sent, self._received
                self._sent, self._received = Counter[int](), Counter[int]()
            for run in sent:
                super().store_traffic(run, bytes_sent=sent[run], bytes_recv=received[run])

    return Sparing


def taking_turns(session: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that gives a transaction to one thread at a time; within its own it may nest."""
    turn = threading.RLock()

    @contextlib.contextmanager
    def taken(self: Any) -> Generator[Any]:
        with turn, session(self) as found:
            yield found

    return taken


class Only:
    """A layer of an ASGI application, for the paths that begin so alone; others go by it."""

    def __init__(self, app: Any, layer: Callable[[Any], Any], beginning: str):
        self.app, self.layer, self.beginning = app, layer(app), beginning

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        own = scope.get("path", "").startswith(self.beginning)
        await (self.layer if own else self.app)(scope, receive, send)


def with_own_layers(get_middleware: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Flower's list of layers, with those of `LAYERS` for their own paths only."""
    from starlette.middleware import Middleware

    def own(layer: Any) -> Any:
        beginning = LAYERS.get(getattr(layer.cls, "__name__", ""))
        return layer if beginning is None else Middleware(Only, layer.cls, beginning)

    return lambda: [own(layer) for layer in get_middleware()]
