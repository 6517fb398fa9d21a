# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Task = Annotated[str, typer.Argument(help="A task's name (see `tasks`) or a TOML file.")]
Algorithm = Annotated[str, typer.Option(help="Its name, such as afa; see `algorithms`.")]
Seed = Annotated[int, typer.Option(help="Everything random follows from it.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds, if not as many as the task says.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Changes a key of the task; may be repeated."),
]
Target = Annotated[str | None, typer.Option(help="Domain of FedAvg (target-only).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write to; below runs/ by default.")]
Which = Annotated[
    str,
    typer.Option(
        metavar="last|best|mean",
        help="Report each run's last model, the best by its worst domain on held-out clients, or"
        " the mean of all.",
    ),
]
