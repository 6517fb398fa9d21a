# SPDX-License-Identifier: Apache-2.0
"""Engines: ways to get a round's `ClientSum`. The algorithm cannot tell which one it got.

A table-driven test holds each engine against the reference loop.
"""

from agnosticfl.engines.auto import auto_engine
from agnosticfl.engines.base import Blocks, Cohort, Engine, EngineBuilder
from agnosticfl.engines.lanes import lanes_engine
from agnosticfl.engines.padded import padded_engine
from agnosticfl.engines.reference import reference_engine
from agnosticfl.engines.steps import steps_engine

__all__ = [
    "Blocks",
    "Cohort",
    "Engine",
    "EngineBuilder",
    "auto_engine",
    "lanes_engine",
    "padded_engine",
    "reference_engine",
    "steps_engine",
]
