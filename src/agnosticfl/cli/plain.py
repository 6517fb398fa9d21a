# SPDX-License-Identifier: Apache-2.0
"""Commands with a plain help text.

Some versions of Typer escape brackets for Rich although they print without it, and forget what
their arguments mean: both are put right here. Newer ones bring a Click of their own, so none is
imported.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import typer
import typer.core


class PlainCommand(typer.core.TyperCommand):
    """A command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class PlainGroup(typer.core.TyperGroup):
    """A command with commands of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class Program(typer.Typer):
    """A group of commands whose help is plain."""

    def __init__(self, cls: type[typer.core.TyperGroup] = PlainGroup, **options: Any):
        super().__init__(
            cls=cls,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, cls=PlainCommand, **options)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    meanings = _argument_meanings(command)
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record: tuple[str, str] | None = parameter.get_help_record(ctx)
        if record is None:
            continue
        name, text = record[0], record[1].replace("\\[", "[")
        if parameter.param_type_name != "argument":
            sections["Options"].append((name, text))
            continue
        meaning = meanings.get(parameter.name or "", "")
        known = not meaning or text.startswith(meaning)
        sections["Arguments"].append((name, text if known else f"{meaning}  {text}".strip()))
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


def _argument_meanings(command: Any) -> dict[str, str]:
    """What the command's function says of its arguments."""
    if command.callback is None:
        return {}
    function = inspect.unwrap(command.callback)
    hints = getattr(function, "__annotations__", {})
    return {
        name: note.help
        for name, hint in hints.items()
        for note in typing.get_args(hint)[1:]
        if isinstance(note, typer.models.ArgumentInfo) and note.help
    }
