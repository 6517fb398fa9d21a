# SPDX-License-Identifier: Apache-2.0
"""What a named thing takes, read from its signature: types, ranges, meanings, and their check.

A parameter's range stands in its annotation, `Annotated[int, Meta(ge=1)]`, and its meaning in the
docstring's `Args:` (or, for a loader, as text in the annotation). The same reading checks a task
before anything is built, explains it (`agnosticfl show`) and makes docs/tasks.md.
"""

import functools
import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.inspect import (
    AnyType,
    BoolType,
    CollectionType,
    CustomType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    Type,
    UnionType,
    type_info,
)

from agnosticfl.errors import check, choose

NEEDED = inspect.Parameter.empty  # in place of a default: there is none

# Ranges that come again and again.
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
PositiveShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1)]
# What a client divides its loss by. Here, since whoever only reads a task needs no JAX.
Normalisation: TypeAlias = Literal["client", "unbiased", "batch"]


class Option(NamedTuple):
    """One option of a named thing, or one key of a task."""

    name: str
    kind: Any  # its type, with its range
    default: Any  # `NEEDED` if it must be given
    meaning: str  # one line


def options_of(function: Callable[..., Any], skipped: int = 0) -> dict[str, Option]:
    """What can be given to `function` by name, without its first `skipped` parameters."""
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    shown = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    kinds, meanings = {**shown, **_annotations(function)}, _meanings(function)
    return {
        p.name: Option(p.name, _kind(p, kinds), p.default, _meaning(p.name, kinds, meanings))
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def check_options(known: Mapping[str, Option], given: Mapping[str, Any], what: str) -> None:
    """Says which of the options given is unknown, missing, of another type or out of range."""
    for name in given:
        choose(name, known, f"option of {what}")
    for name, option in known.items():
        check(option.default is not NEEDED or name in given, f"{what} needs the option {name!r}")
        if name in given:
            check_value(option.kind, given[name], f"{name} of {what}")


def check_value(kind: Any, value: Any, what: str) -> None:
    """Says so if `value` is not of that kind."""
    check(fits(kind, value), f"{what} is {value!r}; it must be {wanted(kind)}")


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is of that type and within its range; no number may be NaN or infinite.

    What a table holds is checked by itself.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return _finite(value)


def call_with_options(
    function: Callable[..., Any], options: Mapping[str, Any], what: str, *given: Any
) -> Any:
    """Calls `function(*given, **options)` with options that have been checked."""
    check_options(options_of(function, len(given)), options, what)
    return function(*given, **options)


def wanted(kind: Any) -> str:
    """What a value must be, in words."""
    return _words(type_info(kind))


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, list | tuple) or all(map(_finite, value))


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError):  # of a library's own function, perhaps
        return {}


def _kind(parameter: inspect.Parameter, kinds: Mapping[str, Any]) -> Any:
    """The annotation; of a library's own, what is plain in it: numbers, truth values, texts."""
    kind = kinds.get(parameter.name, Any)
    if _is_plain(kind):
        return kind
    members = set(typing.get_args(kind))
    if members & {int, float}:  # and, say, arrays or schedules
        return float | None if type(None) in members else float
    default = parameter.default
    if isinstance(default, bool):
        return bool
    return float if isinstance(default, int | float) else Any


def _is_plain(kind: Any) -> bool:
    try:
        info = type_info(kind)
    except TypeError:
        return False
    parts = info.types if isinstance(info, UnionType) else (info,)
    return kind is not Any and not any(isinstance(part, CustomType | AnyType) for part in parts)


def _meaning(name: str, kinds: Mapping[str, Any], meanings: Mapping[str, str]) -> str:
    kind = kinds.get(name)
    notes = typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()
    for note in notes:
        text = note.description if isinstance(note, Meta) else note
        if isinstance(text, str):
            return text
    return meanings.get(name, "")


def _meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The entries of a docstring's `Args:`, each on one line."""
    _, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    entry = re.compile(r"^ +([\w, ]+):\s*((?:.*\n?)(?:^ {4,}.*\n?|^\n(?= {4}))*)", re.MULTILINE)
    section = re.split(r"\n(?=\S)", rest)[0]
    found: dict[str, str] = {}
    for names, text in entry.findall(section + "\n"):
        for name in names.split(","):
            found[name.strip()] = " ".join(text.split())
    return found


def _words(kind: Type) -> str:
    words = _WORDS.get(type(kind))
    return words(kind) if words else "something else"


def _number(what: str, kind: Any) -> str:
    limits = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
    said = " and ".join(f"{text} {limit:g}" for text, limit in limits.items() if limit is not None)
    of = " of" if said.startswith("at") else ""
    return f"{what}{of} {said}" if said else what


def _choices(kind: LiteralType) -> str:
    return " or ".join(repr(value) for value in kind.values)


def _collection(kind: CollectionType) -> str:
    plural = {"a number": "numbers", "a whole number": "whole numbers", "a text": "texts"}
    item = _words(kind.item_type)
    for one, many in sorted(plural.items(), key=lambda pair: -len(pair[0])):
        if item.startswith(one):
            return f"a list of {many}{item.removeprefix(one)}"
    return "a list" if isinstance(kind.item_type, AnyType) else f"a list, each {item}"


_WORDS: dict[type[Type], Callable[[Any], str]] = {
    AnyType: lambda _: "anything",
    BoolType: lambda _: "true or false",
    IntType: functools.partial(_number, "a whole number"),
    FloatType: functools.partial(_number, "a number"),
    StrType: lambda _: "a text",
    NoneType: lambda _: "left out",
    LiteralType: _choices,
    Metadata: lambda kind: _words(kind.type),
    DictType: lambda _: "a table",
    UnionType: lambda kind: " or ".join(map(_words, kind.types)),
    **dict.fromkeys(CollectionType.__subclasses__(), _collection),
}
