# SPDX-License-Identifier: Apache-2.0
"""The view as a page: one HTML that holds everything, and a policy that lets nothing else in."""

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from agnosticfl.deploy.seeing import words
from agnosticfl.deploy.seeing.chart import chart, colours
from agnosticfl.deploy.seeing.status import COMPLETE, FAILED, Line, Status, View


@functools.cache
def template() -> str:
    """The page without its content, for `string.Template`."""
    return (resources.files("agnosticfl") / "deploy" / "seeing" / "page.html").read_text("utf-8")


@functools.cache
def policy() -> str:
    """The Content-Security-Policy: the page's own style and script, by their digests."""
    (style,), (script,) = (
        re.findall(f"<{tag}>(.*?)</{tag}>", _filled("", ""), re.DOTALL)
        for tag in ("style", "script")
    )
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page(view: View) -> str:
    """The whole page."""
    name = view.status.task if view.status else "a federation"
    parts = [_head(view, name), f'<div class="parts">{"".join(_parts(view))}</div>']
    return _filled(f"{view.in_words} – {name}", "\n".join(parts))


def _filled(title: str, content: str) -> str:
    return Template(template()).substitute(title=escape(title), content=content)


def _head(view: View, name: str) -> str:
    status = view.status
    mark = ""
    if status is not None and status.phase == COMPLETE:
        mark = " good"
    elif not view.up or (status is not None and status.phase == FAILED):
        mark = " bad"
    about = (
        f"{status.method}{', secure sums' * status.secure}. Run {status.run}"
        if status
        else "No run"
    )
    tiles = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>"
        for what, value in _tiles(view)
    )
    return (
        f'<h1>{escape(name)}</h1>\n<p class="state{mark}" role="status">{escape(view.in_words)}</p>'
        f"\n<p>{escape(about)}. {words.moment(view.now)} UTC.</p>\n<dl>{tiles}</dl>"
    )


def _tiles(view: View) -> Iterable[tuple[str, str]]:
    status, last = view.status, view.last
    yield "clients online", f"{view.online} of {len(view.server.clients)}"
    if status is None:
        return
    yield "rounds done", f"{status.done} of {status.rounds}"
    if last is not None and last.seconds is not None:
        yield "last round", words.span(last.seconds)
    if status.stage and view.up:
        yield "in this stage", words.span(view.now - status.stage_begun)
    yield "bytes down", words.size(status.bytes_down)
    yield "bytes up", words.size(status.bytes_up)
    yield "clients lost", f"{status.num_lost}"
    if status.privacy is not None:
        own = status.privacy
        yield f"ε spent (δ {own.delta:.3g})", f"{own.epsilon:.3g} of {own.budget:.3g}"


def _parts(view: View) -> Iterable[str]:
    status = view.status
    if status is not None and status.history:
        yield from _domains(status)
    online = [
        (_cell(c.name, "th"), _cell(c.status if view.up else words.DASH, "td", c.status))
        for c in view.server.clients
    ]
    yield _section("clients", "Clients", _table(("client", "status"), online))
    if status is not None and status.stages:
        rows = [
            (
                _cell(stage.name, "th"),
                _cell(f"{stage.came} of {stage.asked}"),
                _cell(words.span(stage.seconds)),
            )
            for stage in status.stages
        ]
        table = _table(("stage", "answers", "took"), rows)
        yield _section("stages", "Stages of the last round", table)
    if status is not None:
        lost = [Line(e.time, f"{e.during}: {e.client} {e.why}") for e in status.lost]
        yield _section("lost", "Clients that were lost", _list(lost))
        yield _section("errors", "The last errors", _list(status.errors))
    yield _section("said", "What the server said", _list(view.server.said))


def _domains(status: Status) -> Iterable[str]:
    """Losses and λ over rounds, and as they are now."""
    history, last = status.history, status.history[-1]
    rounds, classes = [each.round for each in history], colours(last.loss)
    losses = list(zip(*(each.loss for each in history), strict=True))
    weights = list(zip(*(each.domain_weights for each in history), strict=True))
    loss = chart(rounds, losses, classes, "Training loss of each domain over rounds")
    weight = chart(rounds, weights, classes, "Weight of each domain (λ) over rounds")
    yield _section("loss", "Training loss of each domain", loss)
    yield _section("weights", "Weight of each domain, λ", weight)
    rows = [
        (
            f'<th scope="row"><span class="dot {colour}">{escape(name)}</span></th>',
            _cell(words.value(own)),
            _cell(words.value(lam)),
        )
        for name, own, lam, colour in zip(
            status.domains, last.loss, last.domain_weights, classes, strict=True
        )
    ]
    table = _table(("domain", "loss", "λ"), rows)
    yield _section("domains", f"Domains in round {last.round}", table)


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{content}</section>\n'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{head[0]}">'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, tag: str = "td", name: str = "") -> str:
    scope = ' scope="row"' if tag == "th" else ""
    return f"<{tag}{scope}{_class(name)}>{escape(text)}</{tag}>"


def _class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _list(lines: Sequence[Line]) -> str:
    items = "".join(
        f"<li><time>{words.moment(line.time)}</time> {escape(line.text)}</li>"
        for line in reversed(lines)
    )
    return f"<ol>{items}</ol>" if items else "<p>None.</p>"
