# SPDX-License-Identifier: Apache-2.0
"""`report.html`: one page that holds everything and needs no network."""

import base64
import dataclasses
import json
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template

from agnosticfl.report.plots import Plot, svg
from agnosticfl.report.runs import Comparison, Row
from agnosticfl.report.table import Grid


def page(comparison: Comparison, tables: Iterable[Grid], plots: Iterable[Plot]) -> str:
    """The whole page."""
    template = (resources.files("agnosticfl") / "report" / "page.html").read_text(encoding="utf-8")
    environment = comparison.rows[0].runs[0].summary["environment"]
    return Template(template).substitute(
        title=escape(f"{comparison.task}: agnostic federated learning"),
        tables="\n".join(map(_table, tables)),
        figures="\n".join(map(_figure, plots)),
        ledger=_table(_ledger(comparison)),
        configs="\n".join(map(_config, comparison.rows)),
        environment=_pre(environment),
    )


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in grid.header)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td><b>{escape(t)}</b></td>" if best else f"<td>{escape(t)}</td>"
            for t, best in zip(row, marks, strict=True)
        )
        + "</tr>\n"
        for row, marks in zip(grid.rows, grid.best, strict=True)
    )
    return (
        f'<div class="wide"><table><caption>{escape(grid.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _figure(plot: Plot) -> str:
    data = base64.b64encode(svg(plot)).decode()
    caption = escape(plot.caption)
    return (
        f'<figure><img id="{plot.name}" alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _ledger(comparison: Comparison) -> Grid:
    rows: list[list[str]] = []
    for row in comparison.rows:
        sizes = row.runs[0].summary["bytes"]
        parts = (sizes["down_per_round"], sizes["up_per_round"])
        numbers = (*parts, sum(parts), sizes["paper_per_round"])
        rows.append([row.title, *(f"{n:,}" for n in numbers)])
    return Grid(
        "bytes a round, all clients together",
        ["algorithm", "down", "up", "sum", "the paper's formula"],
        rows,
        [[False] * 5 for _ in rows],
    )


def _config(row: Row) -> str:
    config = dataclasses.asdict(row.runs[0].config)
    config["seed"] = [run.config.seed for run in row.runs]
    return f"<details><summary>{escape(row.title)}</summary>{_pre(config)}</details>"


def _pre(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
