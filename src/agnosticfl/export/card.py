# SPDX-License-Identifier: Apache-2.0
"""The card of a model: what it was trained on, how good it is for whom, and what it cost."""

from pathlib import Path

from agnosticfl.runs.about import Facts
from agnosticfl.runs.config import Config


def model_card(run: Path, which: str, config: Config, facts: Facts) -> str:
    del run, which, facts
    return f"# {config.task}\n"
