# SPDX-License-Identifier: Apache-2.0
"""Signatures that show every option of a function that hands its keywords on."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def showing(options: Sequence[inspect.Parameter]) -> Callable[[F], F]:
    """The function that follows, whose signature shows `options` in place of its `**`."""

    def show(function: F) -> F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
        return function

    return show


def keywords_of(function: Callable[..., Any], skipped: int = 0) -> list[inspect.Parameter]:
    """The parameters of `function` as keywords, without its first `skipped`."""
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    return [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
