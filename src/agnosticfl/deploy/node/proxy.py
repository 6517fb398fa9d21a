# SPDX-License-Identifier: Apache-2.0
"""The proxy by which a client gets out, if its environment names one (HTTPS_PROXY, NO_PROXY).

A client asks it for a way to the server (CONNECT), and speaks TLS with the server through it. All
that connects does so by httpx, which reads the same variables.
"""

import urllib.parse
import urllib.request
from http import HTTPStatus

from agnosticfl.errors import check

SCHEMES = ("http", "https")
# A proxy's words if it is the server that does not answer it.
BEYOND = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


def proxy_of(host: str) -> str:
    """HOST:PORT of the proxy between this machine and a host; empty if there is none.

    User and password, which may stand there too, are left out.
    """
    named = urllib.request.getproxies()
    url = named.get("https") or named.get("all") or ""
    if not url or urllib.request.proxy_bypass(host):
        return ""
    found = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    check(
        found.scheme in SCHEMES and bool(found.hostname),
        f"HTTPS_PROXY names a proxy by {found.scheme}://; it must be http://HOST:PORT",
    )
    return found.netloc.rpartition("@")[2]


def refusal(said: str, proxy: str, server: str) -> tuple[str, str]:
    """What it means that a proxy does not let a client through, and what helps.

    Args:
      said: its status and words, such as "403 Forbidden".
    """
    status = said.split()[0] if said.split() else ""
    if status == str(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED.value):
        todo = "set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        return f"{proxy} wants to know who asks ({said})", todo
    if status in [str(code.value) for code in BEYOND]:
        todo = "is the server up, and does its firewall let the proxy in?"
        return f"{proxy} does not get to {server} ({said})", todo
    todo = f"its administrator must allow CONNECT to {server}"
    return f"{proxy} does not let you out to {server} ({said})", todo
