# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a store: `agnosticfl data info`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from agnosticfl.data.balance import class_names
from agnosticfl.data.preparation.record import Category, Column, Number
from agnosticfl.data.store.reader import Store
from agnosticfl.data.summary import DomainSummary, SplitSummary, number_of_features

SHOWN = 30  # columns that are described one by one
CLASSES = 6  # that have a column of their own

Summary = Mapping[str, SplitSummary]


def print_summary(store: Store, summary: Summary) -> None:
    """Prints sizes, shapes, columns, labels and notes."""
    meta = store.meta
    # Names come from anybody's files: brackets in them are no markup.
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    console.print(_sizes(f"{meta.name} (licence: {meta.licence})", summary))
    for name, split in summary.items():
        quantiles = ", ".join(f"{q}: {size:g}" for q, size in split.size_quantiles.items())
        typer.echo(f"{name}: {split.several_domains:,} clients have several domains")
        typer.echo(f"{name}: quantiles of examples per client: {quantiles}")
    for line in (*_features(store), *_columns(store), *_label(store)):
        typer.echo(line)
    balance = _balance(class_names(store), summary)
    if balance is not None:
        console.print(balance)
    for reason, number in meta.left_out.items():
        typer.echo(f"left out {number:,}: {reason}")
    for note in meta.notes:
        typer.echo(f"note: {note}")


def _sizes(title: str, summary: Summary) -> Table:
    """A row for each domain, so that many domains stay readable."""
    has_tokens = any(_domains(summary, "tokens"))
    kinds = ["clients", "examples", *(["tokens"] if has_tokens else [])]
    table = Table("domain", title=title)
    for split in summary:
        for kind in kinds:
            table.add_column(f"{split} {kind}", justify="right")
    names = list(next(iter(summary.values())).domains)
    for name in names:
        domains = [split.domains[name] for split in summary.values()]
        cells = [_number(getattr(domain, kind)) for domain in domains for kind in kinds]
        table.add_row(name, *cells, end_section=name == names[-1])
    table.add_row("all", *(_number(_total(s, kind)) for s in summary.values() for kind in kinds))
    return table


def _total(split: SplitSummary, kind: str) -> int:
    if kind in split._fields:  # a client may have several domains, but is one client
        return getattr(split, kind)
    return sum(getattr(domain, kind) or 0 for domain in split.domains.values())


def _features(store: Store) -> Iterator[str]:
    for name, feature in store.meta.features.items():
        yield f"feature {name}: {feature.dtype} {list(feature.shape)}"
    number = number_of_features(store)
    if number is not None:
        yield f"number of features: {number:,}"


def _columns(store: Store) -> Iterator[str]:
    steps = store.preparation()
    if steps is None:
        return
    for column in steps.columns[:SHOWN]:
        yield f"column {column.name}: {_described(column)}"
    if len(steps.columns) > SHOWN:
        yield f"… and {len(steps.columns) - SHOWN} more columns (all of them: --json)"


def _described(column: Column) -> str:
    if isinstance(column, Category):
        return f"categories {', '.join(column.categories[:SHOWN])}" + (
            f" … and {len(column.categories) - SHOWN} more" * (len(column.categories) > SHOWN)
        )
    if isinstance(column, Number):
        scaled = f"number, (v − {column.mean:.6g}) / {column.deviation:.6g}"
        filled = f", {column.fill:.6g} where it is missing, which a column of its own says"
        return scaled + filled * column.indicator
    return f"lists, feature {column.feature}"


def _label(store: Store) -> Iterator[str]:
    steps, classes = store.preparation(), class_names(store)
    name = f" {steps.label.name}" if steps is not None and steps.label is not None else ""
    if classes is not None:
        more = f" … and {len(classes) - SHOWN} more" * (len(classes) > SHOWN)
        yield f"label{name}: {len(classes)} classes: {', '.join(classes[:SHOWN])}{more}"
    elif "y" in store.meta.features:
        shape = store.meta.features["y"].shape
        yield f"label{name}: " + (f"numbers {list(shape)}" if shape else "a number")


def _balance(classes: Sequence[str] | None, summary: Summary) -> Table | None:
    """The labels of each domain; a cell holds all splits."""
    splits = " / ".join(summary)
    if classes is not None and len(classes) <= CLASSES:
        cells = [lambda d, i=i: _number(d.classes[i]) for i in range(len(classes))]
        return _by_domain(f"examples of each class ({splits})", classes, cells, summary)
    if classes is not None:
        headings = ("classes", "largest", "smallest")
        return _by_domain(f"classes that a domain has ({splits})", headings, _EXTREMES, summary)
    if any(_domains(summary, "target")):
        headings = ("mean", "deviation", "least", "largest")
        cells = [lambda d, key=key: _of_target(d, key) for key in headings]
        return _by_domain(f"label ({splits})", headings, cells, summary)
    return None


def _by_domain(title: str, headings: Sequence[str], cells: Any, summary: Summary) -> Table:
    table = Table("domain", title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    for name in next(iter(summary.values())).domains:
        domains = [split.domains[name] for split in summary.values()]
        table.add_row(name, *(" / ".join(map(cell, domains)) for cell in cells))
    return table


def _domains(summary: Summary, key: str) -> Iterator[Any]:
    return (getattr(d, key) for split in summary.values() for d in split.domains.values())


def _of_target(domain: DomainSummary, key: str) -> str:
    return "–" if domain.target is None else f"{getattr(domain.target, key):.4g}"


def _share(domain: DomainSummary, choose: Any) -> str:
    counts = [count for count in domain.classes or () if count]
    return f"{choose(counts) / sum(counts):.1%}" if counts else "–"


_EXTREMES = (
    lambda d: str(sum(count > 0 for count in d.classes)),
    lambda d: _share(d, max),
    lambda d: _share(d, min),
)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
