# SPDX-License-Identifier: Apache-2.0
"""Where the time of a command goes: named stretches of it, for whoever listens.

Nobody does but `benchmarks/timeline.py`; then a span costs one look at a variable.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias


class Span(NamedTuple):
    """One stretch of time of one thread."""

    name: str
    start: float  # seconds, as `time.time` has them
    end: float
    thread: str


Listener: TypeAlias = Callable[[Span], Any]

_NOTHING = contextlib.nullcontext()
_listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Gives every span to `listener` from now on; to nobody if None."""
    global _listener
    _listener = listener


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """What the block does counts as `name`, but for what spans within it count as."""
    return _NOTHING if _listener is None else _timed(name, _listener)


@contextlib.contextmanager
def _timed(name: str, listener: Listener) -> Generator[None]:
    start = time.time()
    try:
        yield
    finally:
        listener(Span(name, start, time.time(), threading.current_thread().name))
