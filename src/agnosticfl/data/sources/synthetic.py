# SPDX-License-Identifier: Apache-2.0
"""Synthetic data of a task, in memory: no file and no command before it."""

from typing import Any

from agnosticfl.core.federated import Splits
from agnosticfl.core.signature import keywords_of, showing
from agnosticfl.data.collect import collect_splits
from agnosticfl.data.loaders.synthetic import load
from agnosticfl.registry import SOURCES


@SOURCES.add("synthetic")
@showing(keywords_of(load, skipped=1))
def synthetic(**options: Any) -> Splits:
    """Domains of chosen sizes and difficulty, as `agnosticfl data prepare synthetic` makes them."""
    return collect_splits(load(**options))
