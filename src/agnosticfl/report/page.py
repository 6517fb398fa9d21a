# SPDX-License-Identifier: Apache-2.0
"""`report.html`: one page that holds everything and needs no network."""

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from agnosticfl.report.comparison import Comparison
from agnosticfl.report.grid import Entry, Grid, grid
from agnosticfl.report.panels import Saved
from agnosticfl.report.table import help_lines
from agnosticfl.runs.config import flat

# Plots that stand beside the tables of their own section.
LOSSES, COUNTS = ("train", "heldout"), ("counts",)


def make_page(
    comparison: Comparison,
    main: Iterable[Grid],
    details: Sequence[Grid],
    figures: Sequence[Saved],
) -> str:
    """The whole page; `details` are the tables of losses, counts, bytes and time."""
    template = (resources.files("agnosticfl") / "report" / "page.html").read_text(encoding="utf-8")
    losses, counts, ledger, times = map(_table, details)
    own = (*LOSSES, *COUNTS)
    differing, shared = _settings(comparison)
    return Template(template).substitute(
        title=escape(f"{comparison.task}: agnostic federated learning"),
        lead=escape(_lead(comparison)),
        tables="\n".join(map(_table, main)),
        reading="\n".join(f"<li>{escape(line)}</li>" for line in help_lines(comparison)),
        lines=escape(_lines(comparison)),
        figures=_figures(each for each in figures if each.name not in own),
        losses=_figures(each for each in figures if each.name in LOSSES) + losses,
        counts=_figures(each for each in figures if each.name in COUNTS) + counts,
        ledger=ledger,
        differing=_table(differing) if differing.rows else "",
        shared=_table(shared),
        environment=_table(_environment(comparison)) + times,
    )


def _lead(comparison: Comparison) -> str:
    run = comparison.rows[0].runs[0]
    seeds = max(len(row.runs) for row in comparison.rows)
    numbers = (
        (seeds, "seed"),
        (run.config.rounds, "round"),
        (len(comparison.domains), "domain"),
        (run.summary.get("num_params"), "model parameter"),
    )
    return ", ".join(f"{n:,} {word}{'s' * (n != 1)}" for n, word in numbers if n is not None)


def _lines(comparison: Comparison) -> str:
    """What the plots draw of several seeds."""
    if max(len(row.runs) for row in comparison.rows) == 1:
        return ""
    return (
        "Thin lines are seeds, the pale band lies between the lowest and the highest, the thick"
        " line is their mean."
    )


def _table(grid: Grid) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{_text(entry)}</button></th>'
        for entry in grid.header
    )
    body = _rows(grid.rows)
    foot = f"<tfoot>\n{_rows(grid.foot)}\n</tfoot>" if grid.foot else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in grid.notes)
    caption = escape(grid.caption)
    return (
        f'<p class="caption">{caption}</p>\n'
        f'<div class="wide" role="region" tabindex="0" aria-label="{caption}">\n'
        f'<table aria-label="{caption}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>{foot}</table></div>\n{notes}"
    )


def _rows(rows: Iterable[Sequence[Entry]]) -> str:
    return "\n".join(
        f'<tr><th scope="row">{_text(row[0])}</th>{"".join(map(_cell, row[1:]))}</tr>'
        for row in rows
    )


def _cell(entry: Entry) -> str:
    known = entry.value is not None and math.isfinite(entry.value)
    value = f' data-value="{entry.value}"' if known else ""
    long = ' class="long"' if len(entry.text) > 24 else ""
    hint = f' title="{escape(entry.hint)}"' if entry.hint else ""
    interval = f"<small>{escape(entry.interval)}</small>" if entry.interval else ""
    return f"<td{value}{long}{hint}>{_text(entry)}{interval}</td>"


def _text(entry: Entry) -> str:
    return f"<b>{escape(entry.text)}</b>" if entry.bold else escape(entry.text)


def _figures(figures: Iterable[Saved]) -> str:
    return '<div class="figures">' + "\n".join(map(_figure, figures)) + "</div>\n"


def _figure(figure: Saved) -> str:
    data, caption = base64.b64encode(figure.svg).decode(), escape(figure.caption)
    width, height = (round(96 * inches) for inches in figure.size)
    return (
        f'<figure><img id="{figure.name}" width="{width}" height="{height}" alt="{caption}"'
        f' src="data:image/svg+xml;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _settings(comparison: Comparison) -> tuple[Grid, Grid]:
    """The settings in which the algorithms differ, and those they share."""
    configs = [flat(row.runs[0].config) for row in comparison.rows]
    keys = [key for key in dict.fromkeys(k for c in configs for k in c) if key != "seed"]
    texts = {key: [config.get(key, "–") for config in configs] for key in keys}
    same = {key: len(set(values)) == 1 for key, values in texts.items()}
    titles = [row.title for row in comparison.rows]
    differing = [[Entry(k), *map(Entry, v)] for k, v in texts.items() if not same[k]]
    shared = [[Entry(k), Entry(v[0])] for k, v in texts.items() if same[k]]
    seeds = sorted({run.config.seed for row in comparison.rows for run in row.runs})
    shared.append([Entry("seeds"), Entry(", ".join(map(str, seeds)))])
    return (
        grid("Where the algorithms differ", ("setting", *titles), differing),
        grid("What they share", ("setting", "value"), shared),
    )


def _environment(comparison: Comparison) -> Grid:
    runs = [run.summary["environment"] for row in comparison.rows for run in row.runs]
    values = {key: dict.fromkeys(str(run.get(key, "–")) for run in runs) for key in runs[0]}
    rows = [[Entry(key), Entry(", ".join(texts))] for key, texts in values.items()]
    return grid("Where the runs were made", ("what", "value"), rows)
