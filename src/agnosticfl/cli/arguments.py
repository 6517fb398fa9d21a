# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands have."""

from collections.abc import Sequence
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
Dp = Annotated[
    str | None,
    typer.Option(
        metavar="epsilon=8,delta=1e-6[,…]",
        help="Differential privacy: short for --set dp.epsilon=8 --set dp.delta=1e-6 …",
    ),
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
Compress = Annotated[
    str | None,
    typer.Option(metavar="bits=8", help="Smaller uploads: short for --set compress.bits=8."),
]
Secure = Annotated[
    str | None,
    typer.Option(metavar="simulate", help="Add up as secure aggregation does, in fixed point."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Send the numbers to mlflow or wandb as well; may be repeated."),
]
Precision = Annotated[
    str | None,
    typer.Option(help="Of matrix products on accelerators: float32 (the default), tf32 or bf16."),
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache", help="Remember compiled rounds between runs ($AGNOSTICFL_CACHE)."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is there.")]

# Of a client of a federation.
App = Annotated[Path, typer.Option(metavar="DIR", help="The folder that `init` wrote.")]
Roster = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Secure rounds: the roster that the keeper signed."),
]
Server = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")]
Authority = Annotated[Path, typer.Option("--ca", metavar="FILE", help="The server's ca.pem.")]
NodeKey = Annotated[Path, typer.Option("--key", metavar="FILE", help="What `keys client` made.")]
Data = Annotated[Path, typer.Option(metavar="STORE", help="This client's examples.")]
When = Annotated[str, typer.Option(help="Join only when: any of idle,charging,unmetered.")]
MinExamples = Annotated[int, typer.Option(help="Join only with so many examples.")]
Fewest = Annotated[
    int, typer.Option(help="Secure rounds: the fewest clients in a sum, and with a domain.")
]
Alone = Annotated[
    str,
    typer.Option(
        metavar="DOMAINS",
        help="Secure rounds: show sums of these domains with fewer holders, too: counts, losses"
        " and what an evaluation counts.",
    ),
]
Dishonest = Annotated[
    int,
    typer.Option(help="Secure rounds: clients of a round that may work for the server, or 5 %."),
]
MostEpsilon = Annotated[
    float | None,
    typer.Option(
        metavar="E",
        help="Private runs: spend no more than this ε in all runs of this --state together.",
    ),
]
SuperNode = Annotated[
    bool,
    typer.Option(
        "--supernode",
        help="Clients are Flower's own SuperNodes, with a process for each message, and not warm.",
    ),
]
State = Annotated[Path, typer.Option(metavar="FOLDER", help="Where Flower keeps its own things.")]


def keys_of(table: str, text: str | None) -> list[str]:
    """`a=1,b=2` as settings of one table of the task."""
    return [f"{table}.{key}" for key in text.split(",")] if text else []


def settings_of(
    sets: list[str] | None,
    secure: str | None = None,
    dp: str | None = None,
    compress: str | None = None,
    precision: str | None = None,
) -> list[str]:
    """What the command line changes of the task; `a=1,b=2` are keys of one table."""
    values = {"secure.name": secure, "precision": precision}
    named = [f"{key}={value}" for key, value in values.items() if value]
    return [*(sets or ()), *named, *keys_of("dp", dp), *keys_of("compress", compress)]


def names_of(text: str | None, default: Sequence[str]) -> Sequence[str]:
    """Names with commas between them."""
    if text is None:
        return default
    return [name.strip() for name in text.split(",") if name.strip()]
