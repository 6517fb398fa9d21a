# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl export` and `agnosticfl predict`: from a run to a model in use."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agnosticfl.cli.plain import Program
from agnosticfl.errors import check

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def add_commands(app: Program) -> None:
    """Enters the commands of this file."""
    app.command()(export)
    app.command()(predict)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes.")],
    which: Annotated[
        str | None,
        typer.Option(
            help="best (by the worst domain on held-out clients), last or mean; the best by"
            " default, or the last if there were no looks at held-out clients."
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a run's model as a folder that stands alone: parameters, preparation, model card."""
    from agnosticfl.export.folder import export_run
    from agnosticfl.runs.kept_models import read_params

    chosen = export_run(run, out, which, overwrite)
    about = read_params(out / "model.safetensors").about
    why = ""
    if chosen == "best":
        why = f" ({about['metric']} {float(about['value']):.4g} of {about['domain']})"
    typer.echo(f"{out}: the {chosen} model of {run}, of round {about['round']}{why}")


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `export` wrote.")],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="New rows: .parquet, .csv, .npz; or a store.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Predictions: .parquet or .csv.")],
    keep: Annotated[
        str | None,
        typer.Option(help="Columns of the table, with commas, that go with the predictions."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of a store: train, heldout or test; test by default.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Names of the columns, if a text file has no header.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the fields of a text file, if not the usual.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Predict for the rows of a table, or the examples of a store, with an exported model."""
    from agnosticfl.cli.console import print_message
    from agnosticfl.data.formats.tables import open_table
    from agnosticfl.data.store.reader import META, open_store
    from agnosticfl.export.model import load
    from agnosticfl.export.predict import check_out, measure_store, predict_store, predict_table

    check_out(out, overwrite)
    trained = load(folder)
    is_store = (table / META).exists()
    for option, value in {"--keep": keep, "--names": names, "--delimiter": delimiter}.items():
        check(value is None or not is_store, f"{option} is for a table; {table} is a store")
    check(split is None or is_store, f"--split is for a store; {table} is none")
    if is_store:
        store = open_store(table)
        written = predict_store(trained, store, split or "test", out)
        _print_results(measure_store(trained, store, split or "test"))
    else:
        rows = open_table(table, names.split(",") if names else None, delimiter)
        written = predict_table(trained, rows, out, keep.split(",") if keep else ())
    for line in written.notes:
        print_message(f"warning: {line}")
    typer.echo(f"{out}: {written.rows:,} predictions")


def _print_results(evaluation: Any) -> None:
    """What the model is worth on a store's examples, domain by domain."""
    from rich.console import Console
    from rich.table import Table

    shown = Table("domain", *(metric for metric in evaluation.overall))
    for name, values in {**evaluation.domains, "all": evaluation.overall}.items():
        shown.add_row(name, *("–" if v is None else f"{v:.6g}" for v in values.values()))
    Console(width=100).print(shown)
