# SPDX-License-Identifier: Apache-2.0
"""The help of every command: clean, and with the meaning of every argument."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from agnosticfl.cli.commands import app


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """A command and all that are below it, with their help. Typer may bring a Click of its own."""
    with command.make_context(path[-1], [], resilient_parsing=True) as context:
        yield path, command.get_help(context)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                yield from commands(command.get_command(context, name), (*path, name))


HELP = dict(commands(typer.main.get_command(app), ("agnosticfl",)))


def test_there_are_many():
    assert {"run", "compare", "show", "prepare", "local"} <= {path[-1] for path in HELP}


@pytest.mark.parametrize("path", HELP, ids=" ".join)
def test_help_is_clean(path: tuple[str, ...]):
    text = HELP[path]
    assert "\\[" not in text
    assert "[/" not in text
    lines = text.splitlines()
    for heading in ("Arguments:", "Options:"):
        if heading not in lines:
            continue
        for line in lines[lines.index(heading) + 1 :]:
            if not line.startswith(" "):
                break
            name, _, meaning = line.strip().partition("  ")
            if line[2] != " " and meaning:
                assert meaning.strip()[0] != "[", f"{' '.join(path)}: {name} has no meaning"
