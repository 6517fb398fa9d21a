# SPDX-License-Identifier: Apache-2.0
"""The card of a model: what it was trained on, how good it is for whom, and what it cost."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agnosticfl.data.preparation.record import Array, Category, Number, Preparation, from_json
from agnosticfl.report.comparison import compare_runs
from agnosticfl.report.grid import Entry, grid, markdown
from agnosticfl.report.intervals import with_intervals
from agnosticfl.report.runs import Run, load_runs
from agnosticfl.report.table import help_lines, results
from agnosticfl.runs.about import Facts
from agnosticfl.runs.config import as_text
from agnosticfl.runs.resolve import title

SHOWN = 12  # categories of a column that are named


def model_card(folder: Path, which: str, facts: Facts) -> str:
    """The card of one of the models that the run in `folder` kept, in Markdown."""
    (run,) = load_runs([folder], which)
    sections = {
        "Use": _use(),
        "What it takes": _inputs(facts),
        "What it was trained on": _data(run, facts),
        "How good it is, domain by domain": _results(run),
        "How it was trained": _training(run, which),
        "Privacy": _privacy(run),
        "Limits": _limits(),
    }
    heading = f"# {run.config.task}: {title(run.config)}"
    parts = [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items()]
    return "\n\n".join([heading, _first_words(run, which), *parts]) + "\n"


def _first_words(run: Run, which: str) -> str:
    domains = ", ".join(run.summary["domains"])
    return (
        f"The {which} model of one training run (seed {run.config.seed}), meant to serve every one"
        f" of these domains: {domains}."
    )


def _use() -> list[str]:
    return [
        "```sh",
        "agnosticfl predict THIS_FOLDER new_rows.csv --out predictions.parquet",
        "```",
        "",
        "```python",
        "import agnosticfl as afl",
        "",
        'model = afl.load("THIS_FOLDER")',
        "model.predict(rows)  # a frame, arrays by name, a list of rows or of sentences, a file",
        "```",
    ]


def _inputs(facts: Facts) -> Iterator[str]:
    if facts.data.preparation is not None:
        yield from _columns(from_json(facts.data.preparation, "about.json"))
        return
    if facts.data.vocabulary is not None:
        yield f"- sentences in a column `text`, of a vocabulary of {len(facts.data.vocabulary):,}"
    for name, (kind, shape) in facts.features.items():
        size = " × ".join(map(str, shape)) or "one number"
        yield f"- `{name}`: {size}, {kind}" + (" (the label)" if name == "y" else "")
    yield from _classes(facts)


def _columns(preparation: Preparation) -> Iterator[str]:
    for column in preparation.columns:
        yield f"- `{column.name}`: {_column(column)}"
    label = preparation.label
    if label is not None:
        classes = ", ".join(label.classes or ()) or "a number"
        yield f"- to be predicted, not needed in new rows: `{label.name}` ({classes})"
    rule = "filled with the training mean" if preparation.missing == "impute" else "refused"
    yield f"- a missing number is {rule}; an unknown category counts as none of the known ones"


def _column(column: Number | Category | Array) -> str:
    if isinstance(column, Number):
        return f"a number; training mean {column.fill:.4g}"
    if isinstance(column, Array):
        return f"a list of {' × '.join(map(str, column.shape))} numbers ({column.dtype})"
    more = len(column.categories) - SHOWN
    shown = ", ".join(column.categories[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"one of {shown}"


def _classes(facts: Facts) -> Iterator[str]:
    if facts.data.labels is not None:
        yield f"- classes: {', '.join(facts.data.labels[:SHOWN])}"


def _data(run: Run, facts: Facts) -> list[str]:
    examples: dict[str, dict[str, int]] = run.summary["examples"]
    rows = [
        [Entry(domain), *(Entry(f"{numbers[domain]:,}") for numbers in examples.values())]
        for domain in run.summary["domains"]
    ]
    table = grid("Examples of each domain", ("domain", *examples), rows)
    return [
        f"- data: {facts.data.name or 'given from Python'} (licence: {facts.data.licence})",
        f"- checksum: `{run.config.data_digest or 'not told of private data'}`",
        "",
        markdown(table).rstrip(),
    ]


def _results(run: Run) -> list[str]:
    comparison = with_intervals(compare_runs([run]))
    tables = [markdown(table).rstrip() for table in results(comparison)]
    lines = [line for table in tables for line in (table, "")]
    return [*lines, *help_lines(comparison)]


def _training(run: Run, which: str) -> Iterator[str]:
    config, summary = run.config, run.summary
    if which == "best":
        look: dict[str, Any] = summary["best"]
        yield (
            f"- chosen: the model after round {look['round']} of {config.rounds}, when the worst"
            f" domain of held-out clients ({look['domain']}) had {look['metric']}"
            f" {look['value']:.4g}; test examples had no say"
        )
    elif which == "mean":
        yield f"- the mean of the models of all {config.rounds} rounds"
    else:
        yield f"- the model after the last of {config.rounds} rounds"
    weights = zip(summary["domains"], summary["domain_weights"], strict=True)
    yield f"- λ at the end: {', '.join(f'{name} {weight:.3f}' for name, weight in weights)}"
    yield f"- {config.clients_per_round} clients per round, batches of {config.batch_size}"
    for key in ("model", "client_optimizer", "server_optimizer", "weight_rule"):
        yield f"- {key}: `{as_text(getattr(config, key))}`"
    versions = summary["environment"]
    ended: float | None = run.records[-1]["time"]  # None in a private run
    day = (
        "" if ended is None else f"{datetime.datetime.fromtimestamp(ended, datetime.UTC).date()}, "
    )
    yield f"- {day}agnosticfl {versions['agnosticfl']}, JAX {versions['jax']}"


def _privacy(run: Run) -> Iterator[str]:
    spent: dict[str, Any] | None = run.summary.get("privacy")
    if spent is None:
        yield "No differential privacy: the model may tell something of single training clients."
        return
    for key, value in spent.items():
        yield f"- {key}: {as_text(value)}"


def _limits() -> list[str]:
    return [
        "The figures are of test clients from the same sources as the training clients; intervals"
        " say how much they would vary with other clients of those sources, and nothing of other"
        " sources. Look at the worst domain, and at how many examples stand behind it, before the"
        " model decides anything.",
    ]
