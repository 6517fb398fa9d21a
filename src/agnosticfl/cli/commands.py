# SPDX-License-Identifier: Apache-2.0
"""The program: all commands put together. Imports that take time wait for their command."""

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from agnosticfl import __version__
from agnosticfl.cli import model, searching, tasks, training
from agnosticfl.cli.data import data_app
from agnosticfl.cli.deploy import deploy_app
from agnosticfl.cli.plain import Program
from agnosticfl.errors import one_line_errors

# Seconds after which a thread that computes lets another one on. Rounds stop for a moment dozens of
# times, and would each time wait five thousandths, as is usual, for a thread that loads or writes.
TURN = 0.0005

app = Program(
    name="agnosticfl", help="Agnostic federated learning: one model that serves every domain."
)
for part in (training, searching, model, tasks):  # in the order of `agnosticfl --help`
    part.add_commands(app)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agnosticfl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Runs the program. Bad input ends in one line and status 2, a stopped run in status 130."""
    sys.setswitchinterval(TURN)
    with one_line_errors():
        app()


def script() -> None:
    """The same as all that this process does: it leaves at once."""
    ended = list[int]()  # with which status
    atexit.register(_leave_at_once, ended)  # first, so that it is done last
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            ended.append(end.code)
        raise


def _leave_at_once(ended: Sequence[int]) -> None:
    """Spares a process at its end to put away, one by one, what goes with it.

    Whatever has to be done at the end has been done: threads have ended, files are closed. A
    process that ended in another way, or whose last words cannot be written, ends as usual.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        for status in ended:
            os._exit(status)
