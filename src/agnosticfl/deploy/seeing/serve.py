# SPDX-License-Identifier: Apache-2.0
"""The page and the metrics of a server as a process that only reads.

    python -m agnosticfl.deploy.seeing.serve SETTINGS

SETTINGS is a `PageSettings` as JSON, on the command line: nothing in it is secret. Without a
password it answers this machine and the server's own user only; with one, over TLS with the
server's certificate, behind the same door as the gate.
"""

import base64
import binascii
import functools
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.door import Door, Hall
from agnosticfl.deploy.gate.limits import Buckets, Limits, neighbourhood
from agnosticfl.deploy.gate.passage import Answer, Headers, Receive, Send
from agnosticfl.deploy.gate.refusals import Refusals, Refused
from agnosticfl.deploy.gate.running import run_as_process, say, serve, web_server
from agnosticfl.deploy.gate.serve import Certificate
from agnosticfl.deploy.local_user import Place, own
from agnosticfl.deploy.process_settings import from_json
from agnosticfl.deploy.seeing.page import page, policy
from agnosticfl.deploy.seeing.prometheus import TYPE, metrics
from agnosticfl.deploy.seeing.settings import PageSettings, read_password
from agnosticfl.deploy.seeing.status import View, view
from agnosticfl.errors import BadInput, quoted

# Somebody looks at it now and then: far less than clients ask of the gate.
LIMITS = Limits(connections=64, address_connections=16, address_rate=10.0)
GUESSES = 0.5  # wrong passwords of one address per second; ten seconds' worth may come at once
HTML = "text/html; charset=utf-8"
REALM = b'Basic realm="agnosticfl", charset="UTF-8"'


class Shown(NamedTuple):
    """An answer."""

    kind: str
    text: str


def shown(path: str, seen: View) -> Shown:
    """What there is to see at a path; `Refused` if nothing is."""
    match path:
        case "/":
            return Shown(HTML, page(seen))
        case "/metrics":
            return Shown(TYPE, metrics(seen))
        case _:
            raise Refused(404, "there is no such page")


class Page:
    """The page as an ASGI application.

    Args:
      password: that a request must come with; None if the server's own user may look.
      own: whether the server's user has the first end of a connection to the second.
    """

    def __init__(
        self,
        settings: PageSettings,
        password: str | None,
        refusals: Refusals,
        desk: Desk | None = None,
        own: Callable[[Place, Place], bool] = own,
    ):
        self.settings, self.refusals, self.desk, self.own = settings, refusals, desk, own
        self.secret = None if password is None else _digest(password.encode())
        self.requests, self.guesses = Buckets(LIMITS.address_rate), Buckets(GUESSES)

    async def __call__(self, scope: Mapping[str, Any], _receive: Receive, send: Send) -> None:
        address = neighbourhood((scope.get("client") or ["unknown"])[0])
        answer = Answer(send)
        try:
            self.admit(scope, address)
            found = shown(scope["path"], view(Path(self.settings.state)))
            await self.give(answer, 200, found, scope["method"] == "HEAD")
        except BadInput as error:
            self.refusals.note(address, str(error))
            await self.give(answer, 503, Shown("text/plain", "there is no status just now\n"))
        except Refused as refused:
            place = quoted(scope.get("raw_path") or scope["path"])
            self.refusals.note(address, f"{refused.status} {place}: {refused.why}")
            more: Headers = [(b"www-authenticate", REALM)] if refused.status == 401 else []
            text = f"{refused.why}\n" if refused.status != 404 else ""
            await self.give(answer, refused.status, Shown("text/plain", text), more=more)

    def admit(self, scope: Mapping[str, Any], address: str) -> None:
        """Returns if a request may be answered."""
        now = time.monotonic()
        if not self.requests.take(address, now):
            raise Refused(503, "too many requests")
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "this page only shows")
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        if self.secret is None:
            self._admit_user(scope, headers)
            return
        if not (word := given(headers)):
            raise Refused(401, "a password is needed")
        if not self.guesses.take(address, now):
            raise Refused(429, "too many wrong passwords; wait a minute")
        if not hmac.compare_digest(_digest(word), self.secret):
            raise Refused(401, "a wrong password")
        self.guesses.put_back(address)
        visit = scope.get("state", {}).get("visit")
        if visit is not None and self.desk is not None:
            self.desk.prove(visit)

    def _admit_user(self, scope: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
        """Only this user, and no page of another site that made up a name for this machine."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        names = (f"{self.settings.host}:{self.settings.port}", f"localhost:{self.settings.port}")
        if len(hosts) != 1 or hosts[0] not in names:
            raise Refused(404, "another host name")
        if not self.own(scope["client"], scope["server"]):
            raise Refused(403, "for the user that serves; --password FILE opens it to others")

    async def give(
        self,
        answer: Answer,
        status: int,
        found: Shown,
        empty: bool = False,
        more: Headers | None = None,
    ) -> None:
        content = found.text.encode()
        headers: Headers = [
            (b"content-type", found.kind.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"content-security-policy", policy().encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            *(more or ()),
        ]
        await answer.begin(status, headers)
        if not empty:
            await answer.go_on(content)
        await answer.end()


def given(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The password that a request comes with, by any name; nothing if it has none."""
    values = [value for name, value in headers if name == b"authorization"]
    kind, _, word = (values[0] if len(values) == 1 else b"").partition(b" ")
    if kind.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(word, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _digest(secret: bytes) -> bytes:
    """Of one length, so that nothing is learnt from how long a comparison takes."""
    return hashlib.sha256(secret).digest()


def configured(settings: PageSettings) -> uvicorn.Config:
    """The page as Uvicorn runs it."""
    password = read_password(Path(settings.password)) if settings.password else None
    refusals, desk = Refusals(say), Desk(LIMITS)
    http: Any = "h11"
    if password is not None:
        hall = Hall(desk, Certificate(Path(settings.keys)).context, refusals)
        http = functools.partial(Door, hall)
    app: Any = Page(settings, password, refusals, desk)
    most = {"limit_concurrency": LIMITS.connections, "timeout_keep_alive": 5}
    return web_server(app, settings.host, settings.port, http=http, **most)


def main(text: str) -> None:
    """Serves until a signal ends it."""
    serve(configured(from_json(text, PageSettings, "the page's")), "the page")


if __name__ == "__main__":
    run_as_process(main)
