# SPDX-License-Identifier: Apache-2.0
"""What waits for whom, in a SuperLink: so that who asks for it need not ask again and again.

A message or a reply is *here* when all its parts are: Flower takes it in before its parts, and who
fetches it in between waits for a whole second before it tries again.

Whom a message is for is the number of a node; whom a reply is for, the number of the message that
it answers.
"""

import asyncio
import threading
from collections.abc import Collection, Iterable
from typing import TypeAlias

Receiver: TypeAlias = int | str

MANY = 100_000  # of what nobody fetches, before the oldest is forgotten; then one waits in vain


class Mail:
    """Filled and emptied by the SuperLink's threads; waited for by its event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to_come: dict[str, tuple[Receiver, set[str]]] = {}  # message -> parts to come
        self._needed: dict[str, set[str]] = {}  # part -> the messages whose part it is
        self._here: dict[Receiver, set[str]] = {}
        self._waiting: dict[Receiver, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def note_posted(self, receiver: Receiver, message: str, parts: Iterable[str]) -> None:
        """Notes that a message is taken in, of which these parts are still to come."""
        missing = set(parts)
        with self._lock:
            if not missing:
                self._deliver(receiver, message)
                return
            self._to_come[message] = (receiver, missing)
            for part in missing:
                self._needed.setdefault(part, set()).add(message)
            while len(self._to_come) > MANY:
                self._forget(next(iter(self._to_come)))

    def note_part(self, part: str) -> None:
        """Notes that a part of messages is there."""
        with self._lock:
            for message in self._needed.pop(part, ()):
                receiver, missing = self._to_come[message]
                missing.discard(part)
                if not missing:
                    del self._to_come[message]
                    self._deliver(receiver, message)

    def note_fetched(self, receiver: Receiver, messages: Collection[str]) -> None:
        """Notes that these were fetched, and are gone."""
        with self._lock:
            left = self._here.get(receiver, set()) - set(messages)
            if left:
                self._here[receiver] = left
            else:
                self._here.pop(receiver, None)

    def here(self, receiver: Receiver) -> frozenset[str]:
        with self._lock:
            return frozenset(self._here.get(receiver, ()))

    async def wait(self, receivers: Collection[Receiver], seconds: float) -> bool:
        """Waits until something is here for one of them; whether it is."""
        event = asyncio.Event()
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._closed or any(receiver in self._here for receiver in receivers):
                return True
            for receiver in receivers:
                self._waiting.setdefault(receiver, set()).add(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            with self._lock:
                for receiver in receivers:
                    events = self._waiting.get(receiver, set())
                    events.discard(event)
                    if not events:
                        self._waiting.pop(receiver, None)

    def close(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._closed = True
            for receiver in list(self._waiting):
                self._wake(receiver)

    def _deliver(self, receiver: Receiver, message: str) -> None:
        self._here.setdefault(receiver, set()).add(message)
        while len(self._here) > MANY:
            del self._here[next(iter(self._here))]
        self._wake(receiver)

    def _wake(self, receiver: Receiver) -> None:
        for event in self._waiting.get(receiver, ()):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(event.set)

    def _forget(self, message: str) -> None:
        _, missing = self._to_come.pop(message)
        for part in missing:
            self._needed[part].discard(message)
            if not self._needed[part]:
                del self._needed[part]
