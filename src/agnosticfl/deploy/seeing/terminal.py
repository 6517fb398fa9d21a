# SPDX-License-Identifier: Apache-2.0
"""The view in a terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agnosticfl.deploy.seeing import words
from agnosticfl.deploy.seeing.status import Line, Status, View

SHOWN = 5  # last losses and errors


def shown(view: View) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [Text(view.in_words, style="bold"), *map(Text, _lines(view))]
    parts += _clients(view)
    if view.status is not None:
        parts += _of_run(view, view.status)
    parts += _last("The last errors", view.status.errors if view.status else ())
    parts += _last("The server said", view.server.said)
    return Group(*parts)


def _lines(view: View) -> Iterable[str]:
    server, status = view.server, view.status
    if server.page and view.up:
        yield f"page: {server.page}"
    if status is None:
        return
    yield f"{status.task}, {status.method}{', secure sums' * status.secure}; {status.out}"
    if status.stage and view.up:
        waited = words.span(view.now - status.stage_begun)
        asked = f", {status.asked} are asked" if status.asked else ""
        yield f"{status.stage}: for {waited}{asked}"
    sent = f"{words.size(status.bytes_down)} down, {words.size(status.bytes_up)} up"
    yield f"{status.done} of {status.rounds} rounds are done; {sent}"
    if status.privacy is not None:
        own = status.privacy
        yield f"privacy: ε {own.epsilon:.3g} of {own.budget:.3g} is spent (δ {own.delta:.3g})"


def _clients(view: View) -> Iterable[RenderableType]:
    clients = view.server.clients
    yield _title(f"{len(clients)} clients, {view.online} connected")
    table = Table("client", "status")
    for client in clients:
        table.add_row(Text(client.name), client.status if view.up else words.DASH)
    yield table


def _title(text: str) -> Text:
    """Above a table, and not in it: there it would be broken to the table's width."""
    return Text(f"\n{text}", style="italic")


def _of_run(view: View, status: Status) -> Iterable[RenderableType]:
    if view.last is not None:
        last = view.last
        when = ""
        if last.seconds is not None and last.time is not None:
            when = f", {words.span(last.seconds)}, {words.moment(last.time)} UTC"
        yield _title(f"round {last.round}{when}")
        table = Table("domain", "loss", "λ")
        for name, loss, weight in zip(status.domains, last.loss, last.domain_weights, strict=True):
            table.add_row(Text(name), words.value(loss), words.value(weight))
        yield table
    if status.stages:
        yield _title("stages of the last round")
        table = Table("stage", "answers", "took")
        for stage in status.stages:
            table.add_row(stage.name, f"{stage.came} of {stage.asked}", words.span(stage.seconds))
        yield table
    if status.lost:
        yield _title("who was lost last")
        table = Table("time", "during", "client", "why")
        for lost in status.lost[-SHOWN:]:
            when = words.moment(lost.time)
            table.add_row(when, lost.during, Text(lost.client), Text(lost.why))
        yield table


def _last(title: str, lines: Iterable[Line]) -> list[RenderableType]:
    found = [f"{words.moment(line.time)} {line.text}" for line in lines]
    return [_title(title), *map(Text, found[-SHOWN:])] if found else []
