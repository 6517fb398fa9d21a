# SPDX-License-Identifier: Apache-2.0
"""How the reference is read from the source, beside what Griffe does by itself.

Functions that are called otherwise than they are written (a method takes `Parts`, and is called
with a model and data) are shown as they are called. A comment beside a field is what is said of it.
Of a room, what it exports is shown, unless that has a place of its own among the public names.
"""

import inspect
import re
from typing import Any

import griffe

import agnosticfl


class AsUsed(griffe.Extension):
    """Signatures as `inspect` has them, and fields with the comments beside them."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """The comment at the end of a field's line, as its docstring."""
        if attr.docstring is None and attr.lines:
            _code, mark, comment = attr.lines[-1].partition("  # ")
            if mark and not comment.startswith(("noqa", "pyright", "type:")):
                attr.docstring = griffe.Docstring(comment.strip(), parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The signatures of public functions, and what the rooms show."""
        for name in agnosticfl.__all__:
            shown, real = pkg[name], getattr(agnosticfl, name)
            if isinstance(shown, griffe.Alias):
                shown = shown.final_target
            if isinstance(shown, griffe.Function):
                shown.parameters = _parameters(real)
            elif isinstance(shown, griffe.Module):
                shown.exports = [each for each in real.__all__ if each not in agnosticfl.__all__]


def _parameters(function: Any) -> griffe.Parameters:
    found = inspect.signature(function).parameters.values()
    return griffe.Parameters(
        *(
            griffe.Parameter(
                p.name,
                kind=griffe.ParameterKind(p.kind.description),
                annotation=None if p.annotation is p.empty else _type(p.annotation),
                default=None if p.default is p.empty else _default(p.default),
            )
            for p in found
        )
    )


def _type(annotation: Any) -> str:
    """As it is written in the source, without the modules that names come from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(\w+\.)+(?=\w)", "", text)


def _default(value: Any) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    return "..." if " at 0x" in repr(value) else repr(value)  # what holds objects is no Python
