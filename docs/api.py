# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api.md anew: `python docs/api.py`.

Every public name, with its signature or fields and its own words, read from the source.
"""

import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import agnosticfl as afl

PAGE = Path(__file__).with_name("api.md")

SECTIONS = {
    "Train": (
        "agnostic_fedavg", "fedavg", "fedavg_target", "drfa", "q_fedavg", "excess_risk", "fednova",
        "study", "tune", "tune_study",
    ),
    "Data": ("from_arrays", "split_frame", "FederatedData", "Splits", "Source"),
    "Models": ("models", "from_functions", "from_nnx", "from_linen", "from_equinox", "Model"),
    "Metrics and evaluation": (
        "evaluator", "full_evaluator", "worst_domain", "some_clients", "metric", "exact_metric",
        "Metric", "Mean",
    ),
    "A model in use": ("export_run", "load", "TrainedModel"),
    "Rules for λ": (
        "weights", "exponentiated_gradient", "proportional", "fixed", "WeightRule", "DomainStats",
    ),
    "Who takes part": (
        "uniform_cohorts", "stratified_cohorts", "available_cohorts", "SamplerBuilder", "Sampler",
    ),
    "How a sum over clients is obtained": (
        "engines", "Engine", "EngineBuilder", "SumOverClients", "Broadcast", "ClientSum",
    ),
    "What a contribution goes through": ("channels", "Channel", "ChannelBuilder"),
    "Methods": ("method", "Method", "Parts", "Algorithm", "ServerState", "RoundInfo"),
    "Errors": ("BadInput",),
}  # fmt: skip


def page() -> str:
    """The page as it should be."""
    parts = [
        "# Public names\n",
        "Made by `python docs/api.py` from the source. With `import agnosticfl as afl`, every name"
        " below is `afl.NAME`, and is loaded when it is first used.\n",
    ]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        parts += [_entry(name, getattr(afl, name)) for name in names]
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> str:
    text = f"### `{name}`\n\n"
    if inspect.ismodule(thing):
        names = ", ".join(f"`{each}`" for each in thing.__all__)
        return f"{text}{_words(thing)}\n\nIn it: {names}.\n"
    code = _class(thing) if inspect.isclass(thing) else f"{name}{_signature(thing)}"
    return f"{text}```python\n{code}\n```\n\n{_words(thing)}\n"


def _signature(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    shown: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(p.name if p.default is p.empty else f"{p.name}={_default(p.default)}")
    line = f"({', '.join(shown)})"
    return line if len(line) < 90 else f"(\n{textwrap.indent(_wrapped(shown), '    ')},\n)"


def _wrapped(shown: list[str]) -> str:
    return textwrap.fill(", ".join(shown), 90, break_long_words=False, break_on_hyphens=False)


def _default(value: Any) -> str:
    plain = value is None or isinstance(value, str | int | float)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if plain else "…"


def _class(thing: type) -> str:
    """The fields of a class, with what stands beside them; of a protocol, its call."""
    source = inspect.getsource(thing)
    head = next(line for line in source.splitlines() if line.startswith("class "))
    body = source.partition('"""')[2].partition('"""')[2]
    before_methods = body.partition("    @")[0].partition("    def ")[0].strip("\n")
    _, is_protocol, call = body.partition("    def __call__")
    if thing.__mro__[1].__name__ == "Protocol" and is_protocol:
        before_methods = is_protocol + call.rstrip()
    return f"{head}\n{before_methods}".rstrip()


def _words(thing: Any) -> str:
    """The docstring, with its arguments as a list."""
    text, mark, arguments = (inspect.getdoc(thing) or "").partition("\nArgs:\n")
    if not mark:
        return text.strip()
    rest = textwrap.dedent(arguments)
    items = [
        f"- {line}" if line and not line.startswith(" ") else line for line in rest.split("\n")
    ]
    return f"{text.strip()}\n\n" + "\n".join(items).strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
