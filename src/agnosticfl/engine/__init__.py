# SPDX-License-Identifier: Apache-2.0
"""Engines: ways to get a round's `ClientSum`. The algorithm cannot tell which one it got.

A table-driven test holds each engine against the reference loop.
"""

from agnosticfl.engine.lanes import lanes
from agnosticfl.engine.padded import padded
from agnosticfl.engine.reference import reference
from agnosticfl.engine.seam import Engine, EngineBuilder, SumOverClients

# What a task's `engine` can name.
ENGINES: dict[str, EngineBuilder] = {
    "lanes": lanes,
    "padded": padded,
    "reference": reference,
}

__all__ = ["ENGINES", "Engine", "EngineBuilder", "SumOverClients", "lanes", "padded", "reference"]
