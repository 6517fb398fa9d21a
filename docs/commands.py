# SPDX-License-Identifier: Apache-2.0
"""Writes docs/commands.md anew: `python docs/commands.py`.

Every command with its arguments and options, as its own --help tells them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from agnosticfl.cli.commands import app

PAGE = Path(__file__).with_name("commands.md")
TOP = """# Commands

Made by `python docs/commands.py` from the program; `agnosticfl COMMAND --help` says the same in a
terminal. Bad input gets one line and exit status 2; a run that was stopped by Ctrl-C ends with 130.
"""


def page() -> str:
    """The page as it should be."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    return "\n".join([TOP, *(_entry(*found) for found in _commands(group, "agnosticfl"))])


def _commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """All that can be called, groups before what is in them."""
    for word, command in group.commands.items():
        if not command.hidden:
            yield f"{name} {word}", command
            if isinstance(command, click.Group):
                yield from _commands(command, f"{name} {word}")


def _entry(name: str, command: click.Command) -> str:
    depth = "##" if name.count(" ") == 1 else "###"
    parts = [f"{depth} `{name}`\n", _words(command.help)]
    if not isinstance(command, click.Group):
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        usage = " ".join([name, *map(_usage, arguments), *["[options]"] * bool(options)])
        parts.append(f"```\n{usage}\n```\n")
        said = [a for a in arguments if getattr(a, "help", None)]
        if rows := [*map(_argument, said), *map(_option, options)]:
            parts.append("\n".join(["| option | | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(part for part in parts if part)


def _words(text: str | None) -> str:
    """A docstring as Markdown, up to where Typer's help ends."""
    return re.sub(r"\f.*", "", text or "", flags=re.DOTALL).strip() + "\n"


def _usage(argument: click.Argument) -> str:
    return argument.make_metavar(click.Context(click.Command("")))


def _argument(argument: click.Argument) -> str:
    return f"| `{_usage(argument)}` | {_cell(getattr(argument, 'help', ''))} | |"


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    shown = option.default
    default = "" if shown in (None, (), [], "", False, ...) or callable(shown) else f"`{shown}`"
    required = "required" if option.required else default
    return f"| {names} | {_cell(option.help or '')} | {required} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
