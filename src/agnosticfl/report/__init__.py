# SPDX-License-Identifier: Apache-2.0
"""Run folders in; tables, plots and one self-contained page out.

The names are loaded when first used: a process that only draws (`painter.py`) needs no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agnosticfl.report.comparison import Comparison as Comparison
    from agnosticfl.report.runs import load_runs as load_runs
    from agnosticfl.report.table import short_help as short_help
    from agnosticfl.report.writing import tables as tables
    from agnosticfl.report.writing import write_report as write_report

_PLACES = {
    "Comparison": "comparison",
    "load_runs": "runs",
    "short_help": "table",
    "tables": "writing",
    "write_report": "writing",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"agnosticfl.report.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'agnosticfl.report' has no attribute {name!r}")
