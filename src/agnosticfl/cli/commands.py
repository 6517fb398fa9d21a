# SPDX-License-Identifier: Apache-2.0
"""The program: all commands put together. Imports that take time wait for their command."""

import atexit
import gc
import sys
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
    atexit.register(_leave_memory)
    sys.setswitchinterval(TURN)
    with one_line_errors():
        app()


def _leave_memory() -> None:
    """Spares a process at its end the search for garbage in memory that is about to go.

    DuckDB must be let go: what is left of it at the end it prints as leaks, forty lines of them.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()
