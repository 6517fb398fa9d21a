# SPDX-License-Identifier: Apache-2.0
"""Engines: ways to get a round's `ClientSum`. The algorithm cannot tell which one it got.

A table-driven test holds each engine against the reference loop.
"""

from agnosticfl.engine.auto import auto
from agnosticfl.engine.lanes import lanes
from agnosticfl.engine.padded import padded
from agnosticfl.engine.reference import reference
from agnosticfl.engine.reports import Reporters, reporters
from agnosticfl.engine.seam import (
    Blocks,
    Broadcast,
    Engine,
    EngineBuilder,
    SumOverClients,
    server_key,
    with_unit_alpha,
)
from agnosticfl.engine.steps import steps

# What a task's `engine` can name.
ENGINES: dict[str, EngineBuilder] = {
    "auto": auto,
    "lanes": lanes,
    "steps": steps,
    "padded": padded,
    "reference": reference,
}
WITH_LANES = ("auto", "lanes")  # those whose number of lanes and devices can be chosen
WITH_PROCESSES = ("auto", "lanes", "steps")  # those that several processes can share

__all__ = [
    "ENGINES",
    "WITH_LANES",
    "WITH_PROCESSES",
    "Blocks",
    "Broadcast",
    "Engine",
    "EngineBuilder",
    "Reporters",
    "SumOverClients",
    "auto",
    "lanes",
    "padded",
    "reference",
    "reporters",
    "server_key",
    "steps",
    "with_unit_alpha",
]
