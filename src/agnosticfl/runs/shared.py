# SPDX-License-Identifier: Apache-2.0
"""What the runs of one command share: each model, data set, optimizer and rule is made once.

Programs are known by the parts that they were made from (`engines.base.remembered`), so runs that
differ in their seeds alone are traced and compiled once, and so is what evaluates them.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agnosticfl.core.federated import Splits, digest_of
from agnosticfl.engines.helpers.feed import last_kept


class Shared:
    """The things that were made so far; data stays on the device until other data comes.

    Threads may share it: each thing is made by one of them.
    """

    def __init__(self) -> None:
        self.pool = last_kept()
        self._made: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def made(self, make: Callable[..., Any], table: Mapping[str, Any], *rest: Any) -> Any:
        """`make(table, *rest)`, the same thing for the same table."""
        key = (make, msgspec.json.encode(table), rest)
        with self._lock:
            if key not in self._made:
                self._made[key] = make(table, *rest)
            return self._made[key]

    def digest(self, data: Splits) -> str:
        """What tells `data` from any other: all of it is read once."""
        key = (digest_of, id(data.train.domain))
        with self._lock:
            if key not in self._made:
                self._made[key] = (digest_of(data), data)  # which keeps its identity
            return self._made[key][0]
