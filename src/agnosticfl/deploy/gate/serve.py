# SPDX-License-Identifier: Apache-2.0
"""The gate as a process.

    python -m agnosticfl.deploy.gate.serve SETTINGS

SETTINGS is a `Settings` as JSON, on the command line: nothing in it is secret.
"""

import functools
import resource
import ssl
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.door import Door, Hall
from agnosticfl.deploy.gate.limits import Buckets
from agnosticfl.deploy.gate.members import LOOK, Members
from agnosticfl.deploy.gate.passage import Passage
from agnosticfl.deploy.gate.refusals import Refusals
from agnosticfl.deploy.gate.running import run_as_process, say, serve, web_server
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.node.file_cache import Version, versions
from agnosticfl.deploy.process_settings import from_json
from agnosticfl.errors import BadInput

KEPT = 60.0  # seconds that an idle connection to the SuperLink stays: that ends it after 75
SPARE = 64  # files beside connections


def server_context(keys: Path) -> ssl.SSLContext:
    """TLS by which clients know the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(keys / "server.pem", keys / "server.key")
    except ssl.SSLError as error:
        pair = f"{keys / 'server.pem'} and server.key"
        raise BadInput(f"{pair} are no certificate and its key: {error}") from None
    return context


class Certificate:
    """The server's, as its files are now: one that was renewed counts for the next connection."""

    def __init__(self, keys: Path):
        self.keys, self._context = keys, server_context(keys)
        self._files = self._versions()
        self._looked = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """TLS for a connection that begins."""
        if time.monotonic() - self._looked > LOOK:
            self._looked, files = time.monotonic(), self._versions()
            if files != self._files:
                self._take(files)
        return self._context

    def _take(self, files: tuple[Version, ...]) -> None:
        try:
            self._context = server_context(self.keys)
        except (BadInput, OSError):  # of two files, one may still be the old one
            return
        self._files = files
        say("the server's certificate was renewed")

    def _versions(self) -> tuple[Version, ...]:
        return versions([self.keys / "server.pem", self.keys / "server.key"])


def ways_to_superlink(settings: Settings) -> Callable[[str], httpx.AsyncClient]:
    """Each client's way to the SuperLink, by TLS: another program may have taken its port.

    Connections are kept for each client apart: of those that are kept together, httpx looks at all
    for each request, which takes longer than the request where a thousand clients wait.
    """
    tls = ssl.create_default_context(cafile=settings.authority)
    most = settings.limits.node_requests

    @functools.cache
    def way(_client: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"https://{settings.superlink}",
            verify=tls,
            headers={"accept-encoding": "identity"},
            timeout=httpx.Timeout(settings.limits.request_seconds, connect=20.0),
            limits=httpx.Limits(
                max_connections=most,  # so that none waits
                max_keepalive_connections=most,  # nor is made anew
                keepalive_expiry=KEPT,
            ),
            trust_env=False,  # no proxy lies between
        )

    return way


def configured(settings: Settings, way: Callable[[str], httpx.AsyncClient]) -> uvicorn.Config:
    """The gate as Uvicorn runs it."""
    limits, keys, refusals = settings.limits, Path(settings.keys), Refusals(say)
    desk = Desk(limits)
    passage = Passage(
        desk,
        Members(keys / "clients"),
        Buckets(limits.address_rate),
        Buckets(limits.node_rate),
        Counter(),
        way,
        refusals,
        Path(settings.served),
    )
    hall = Hall(desk, Certificate(keys).context, refusals)
    door: Any = functools.partial(Door, hall)
    wait = max(1, int(limits.head_seconds))
    return web_server(passage, settings.host, settings.port, http=door, timeout_keep_alive=wait)


def allow_files(wanted: int) -> None:
    """As many open files as there may be connections, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main(text: str) -> None:
    """Serves until a signal ends it."""
    settings = from_json(text, Settings, "the gate's")
    allow_files(2 * settings.limits.connections + SPARE)
    serve(configured(settings, ways_to_superlink(settings)), "the gate")


if __name__ == "__main__":
    run_as_process(main)
