# SPDX-License-Identifier: Apache-2.0
"""Every command that a page shows is one that the program takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from agnosticfl.cli.commands import app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("docs/*.md")), *(ROOT / name for name in ("README.md", "SECURITY.md"))]
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """What follows `agnosticfl` in the page's blocks for a shell."""
    for block in SHELL.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("agnosticfl "):
                yield line.removeprefix("agnosticfl ")


def parsed(words: list[str]) -> click.Command:
    """The command that these words call, if it takes all of them."""
    command, context = typer.main.get_command(app), None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    _, left, _ = command.make_parser(click.Context(command, parent=context)).parse_args(words)
    assert left == [], f"words too many: {left}"
    return command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_takes_every_command_of_a_page(page: Path):
    for line in commands(page):
        # "…" is for whatever else a reader's own command has.
        parsed([word for word in shlex.split(line, comments=True) if word != "…"])


def test_that_test_sees_an_option_that_is_not_there():
    with pytest.raises(click.NoSuchOption):
        parsed(["run", "toy", "--hurry"])
    with pytest.raises(click.UsageError, match="No such command"):
        parsed(["walk", "toy"])
