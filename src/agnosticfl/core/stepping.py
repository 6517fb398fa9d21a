# SPDX-License-Identifier: Apache-2.0
"""Whether what is traced is one step, a program that the host calls, or a part of a larger one.

A model may compute in another way then: some operations are slow inside a compiled loop.
"""

import contextlib
import contextvars
from collections.abc import Generator

_STEP_BY_STEP = contextvars.ContextVar("step_by_step", default=False)


@contextlib.contextmanager
def step_by_step() -> Generator[None]:
    """What is traced in here is one step for one client."""
    before = _STEP_BY_STEP.set(True)
    try:
        yield
    finally:
        _STEP_BY_STEP.reset(before)


def is_step_by_step() -> bool:
    """Whether the host calls each step by itself."""
    return _STEP_BY_STEP.get()
