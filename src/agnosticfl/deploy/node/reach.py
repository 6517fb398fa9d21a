# SPDX-License-Identifier: Apache-2.0
"""Whether a client gets to its server and is let in, and if not: what is wrong, and what to do.

One signed request to the gate, over the same way as all others of a client (a proxy, if there is
one), tells address, TLS, certificate, host name, clock and key apart.
"""

import datetime
import email.utils
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agnosticfl.deploy.gate.members import AHEAD, BEHIND
from agnosticfl.deploy.gate.routes import CHECK, PUBLIC_KEY, SIGNATURE, TIMESTAMP
from agnosticfl.deploy.keys import read_node_key, read_small
from agnosticfl.deploy.node.proxy import proxy_of, refusal
from agnosticfl.deploy.served import MOST_BYTES, Served, parse_served
from agnosticfl.errors import BadInput, check

PATIENCE = 20.0  # seconds for the server to answer
SLOW = -2.0  # seconds: a clock that is so far behind is one reason for a server to be busy
SOON = datetime.timedelta(days=30)  # before its end a certificate is worth a word

_PEM = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

# OpenSSL's numbers of what is wrong with a certificate.
NOT_YET, EXPIRED = 9, 10
OTHER_NAME = (62, 64)  # of a host, of an address
NO_AUTHORITY_KEY = 85

# Flower's connections ask of certificates what Python does by itself, which is more from 3.13 on.
USUAL = ssl.create_default_context().verify_flags


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    right: bool
    said: str  # what was found
    todo: str = ""  # what helps, if it is not right
    waiting: bool = False  # whether waiting may help

    def line(self) -> str:
        return f"{self.what}: {self.said}{f'; {self.todo}' if self.todo else ''}"


class Reached(NamedTuple):
    """How far a client came, and what the server said of itself if it came all the way."""

    findings: tuple[Finding, ...]
    served: Served | None = None

    @property
    def wrong(self) -> Finding | None:
        """What keeps the client out."""
        return next((finding for finding in self.findings if not finding.right), None)


def reach(server: str, authority: Path, key: Path) -> Reached:
    """Asks the server to let this client in.

    Args:
      server: host:port.
      authority: the certificate to trust.
      key: the file with the node key.
    """
    host, _, port = server.rpartition(":")
    check(
        bool(host) and port.isdigit() and 0 < int(port) < 2**16,
        f"the server is {server!r}; it must be HOST:PORT",
    )
    trusted, node = trust(authority), read_node_key(key)
    proxy = proxy_of(host.strip("[]"))
    begun = time.time()
    try:
        answer, shown = _ask("POST", f"https://{server}{CHECK}", trusted, signed(node, begun))
    except (httpx.HTTPError, OSError) as error:
        return Reached(tuple(_unreached(error, server, host, proxy)))
    middle = (begun + time.time()) / 2
    found = [
        _answers(server, proxy),
        _certificate(shown, authority),
        Finding("host name", True, f"{host} is in the certificate"),
        *_answered(answer, _clock(answer, middle), key),
    ]
    if answer.status_code != HTTPStatus.OK:
        return Reached(tuple(found))
    try:
        served = parse_served(answer.content[:MOST_BYTES])
    except BadInput as error:
        todo = "is that the server, and of the same version?"
        return Reached((*found, Finding("server", False, str(error), todo)))
    known = Finding("key", True, f"{key} is registered as {ascii(served.client)[1:-1]}")
    return Reached((*found, known), served)


def trust(authority: Path) -> ssl.SSLContext:
    """TLS with a server that has a certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags = USUAL
    try:
        context.load_verify_locations(cadata=read_small(authority, MOST_BYTES).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(f"{authority} is no certificate: {error}") from None
    return context


def signed(key: ec.EllipticCurvePrivateKey, now: float) -> dict[str, str]:
    """The headers by which a node proves itself: its key, a time, its signature under that."""
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    signature = key.sign(moment.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        PUBLIC_KEY.decode(): b64encode(key.public_key().public_bytes(*_PEM)).decode(),
        TIMESTAMP.decode(): moment,
        SIGNATURE.decode(): b64encode(signature).decode(),
    }


def _answers(server: str, proxy: str) -> Finding:
    through = f", through the proxy {proxy}" if proxy else ""
    return Finding("address", True, f"{server} answers{through}")


def _unreached(error: Exception, server: str, host: str, proxy: str) -> Iterator[Finding]:
    """What is wrong, if there was no answer.

    Args:
      proxy: the one on the way, if there is one.
    """
    chain = list(_causes(error))
    certificate = next((e for e in chain if isinstance(e, ssl.SSLCertVerificationError)), None)
    refused = next((e for e in chain if isinstance(e, httpx.ProxyError)), None)
    if certificate is not None:
        yield _answers(server, proxy)
        yield _untrusted(certificate, server, host)
    elif refused is not None:
        yield Finding("proxy", False, *refusal(_short(refused), proxy, server), True)
    elif any(isinstance(e, socket.gaierror) for e in chain):
        todo = f"look for a mistake in {'HTTPS_PROXY' if proxy else '--server'}"
        name = f"of the proxy {proxy}" if proxy else host
        said = f"the name {name} is not known here"
        yield Finding("address", False, said, f"{todo}, or ask who keeps the names (DNS)", True)
    elif any(isinstance(e, ssl.SSLError | httpx.RemoteProtocolError) for e in chain):
        todo = "is it the right port, and does a proxy open TLS?"
        said = f"{server} does not speak TLS as a server of ours"
        yield Finding("address", False, f"{said} ({_short(error)})", todo, True)
    else:
        what, it = (f"the proxy {proxy}", "proxy") if proxy else (server, "server")
        todo = f"is the {it} up, and does the firewall let you out to it?"
        yield Finding("address", False, f"{what} does not answer ({_short(error)})", todo, True)


def _untrusted(error: ssl.SSLCertVerificationError, server: str, host: str) -> Finding:
    """What is wrong with the server's certificate."""
    if error.verify_code in OTHER_NAME:
        names = _names(server)
        said = f"the server's certificate is not for {host}{f', but for {names}' if names else ''}"
        return Finding("host name", False, said, "give --server by a name that it is for")
    now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC by this machine's clock"
    shown = _shown(server)
    if error.verify_code == EXPIRED:
        when = f" on {shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC" if shown else ""
        todo = "if that clock is right, the server's operator must renew the certificate"
        return Finding("certificate", False, f"it expired{when}, and it is {now}", todo)
    if error.verify_code == NOT_YET:
        when = f" before {shown.not_valid_before_utc:%Y-%m-%d %H:%M} UTC" if shown else ""
        said = f"it is not valid{when}, and it is {now}"
        return Finding("certificate", False, said, "set that clock (NTP)")
    if error.verify_code == NO_AUTHORITY_KEY:
        said = "it does not name its authority's key, as Python 3.13 asks: agnosticfl 0.1 made it"
        todo = (
            "the server's operator must make keys anew (`deploy keys server`), or use Python 3.12"
        )
        return Finding("certificate", False, said, f"{todo} here")
    todo = "compare the words of ca.pem with the operator (`deploy fingerprint`)"
    todo += "; a proxy that opens TLS must let this server through unopened"
    said = f"it is not of the authority in --ca ({error.verify_message})"
    return Finding("certificate", False, said, todo)


def _shown(server: str) -> x509.Certificate | None:
    """The certificate that a server shows, whoever signed it; nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return _ask("HEAD", f"https://{server}/", context)[1]
    except (httpx.HTTPError, OSError, ValueError):
        return None


def _ask(
    method: str, url: str, context: ssl.SSLContext, headers: dict[str, str] | None = None
) -> tuple[httpx.Response, x509.Certificate | None]:
    """An answer, and the certificate of who gave it."""
    with (
        httpx.Client(verify=context, timeout=PATIENCE) as client,
        client.stream(method, url, headers=headers) as answer,
    ):
        stream = answer.extensions.get("network_stream")  # as long as the answer comes
        tls: Any = stream.get_extra_info("ssl_object") if stream else None
        content = tls.getpeercert(True) if tls else None
        answer.read()
    return answer, x509.load_der_x509_certificate(content) if content else None


def _names(server: str) -> str:
    shown = _shown(server)
    try:
        found = shown and shown.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ""
    return ", ".join(str(name.value) for name in found.value) if found else ""


def _certificate(shown: x509.Certificate | None, authority: Path) -> Finding:
    """Of a server that is trusted; the end of its certificate may be near."""
    if shown is None:
        return Finding("certificate", True, f"of the authority in {authority}")
    until = shown.not_valid_after_utc
    near = until - datetime.datetime.now(datetime.UTC) < SOON
    todo = "the server's operator should renew it" if near else ""
    said = f"of the authority in {authority}, valid until {until:%Y-%m-%d}"
    return Finding("certificate", True, said, todo)


def _clock(answer: httpx.Response, now: float) -> float | None:
    """Seconds that this machine's clock is ahead of the server's, to the second."""
    try:
        date = email.utils.parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return None
    return now - date.timestamp() - 0.5  # the server's is cut off to the second


def _answered(answer: httpx.Response, ahead: float | None, key: Path) -> Iterator[Finding]:
    """What an answer says of clock and key, but for a key that is registered."""
    refused = answer.status_code == HTTPStatus.UNAUTHORIZED
    # A server's time is one of the last second; who is let in has a clock that is right.
    unsure = -1.0 if refused else 1.0
    off = ahead is not None and not -BEHIND - unsure < ahead < AHEAD + unsure
    if (off and answer.status_code != HTTPStatus.OK) or (refused and ahead is None):
        yield _wrong_clock(ahead)
        return
    if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE and ahead is not None and ahead < SLOW:
        said = f"this machine's is {_seconds(ahead)} behind the server's"
        said += ", which takes nothing that was signed before it was up"
        yield Finding("clock", False, said, "set it (NTP), or wait as long", True)
        return
    told = "the server does not tell its time" if ahead is None else f"{_seconds(ahead)} off"
    yield Finding("clock", True, told)
    if refused:
        todo = "is another client running with the same key?"
        yield Finding("key", False, f"the server does not take a signature of {key}", todo)
    elif answer.status_code == HTTPStatus.NOT_FOUND:
        todo = f"its operator must register {key.with_suffix('.pub').name}, or the keeper your card"
        yield Finding("key", False, f"the server does not know {key}", todo, True)
    elif answer.status_code != HTTPStatus.OK:
        said = f"it answers with status {answer.status_code}"
        yield Finding("server", False, said, "it is in trouble, or has too many to serve", True)


def _wrong_clock(ahead: float | None) -> Finding:
    allowed = f"{AHEAD:.0f} s ahead and {BEHIND:.0f} s behind are let in"
    if ahead is None:
        said = "the server does not take this client's time or signature"
    else:
        side = "ahead of" if ahead > 0 else "behind"
        said = f"this machine's is {_seconds(ahead)} {side} the server's; {allowed}"
    return Finding("clock", False, said, "set it (NTP)")


def _seconds(ahead: float) -> str:
    return f"{abs(ahead):.0f} s"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _short(error: BaseException) -> str:
    """What the system said, in one line."""
    return " ".join(f"{error}".split())[:120] or type(error).__name__


class Waiting:
    """The seconds until a client knocks again, and whether there is something new to say."""

    FIRST, LAST, AGAIN = 2.0, 60.0, 3600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """From the beginning: what was waited for is there."""
        self.pause, self._said, self._when = self.FIRST, "", 0.0

    def new(self, line: str) -> bool:
        """Whether a line was not said before, or an hour ago."""
        now = self.clock()
        if line == self._said and now - self._when < self.AGAIN:
            return False
        self._said, self._when = line, now
        return True

    def next(self) -> float:
        """The next pause: each is longer, up to a minute."""
        pause, self.pause = self.pause, min(1.5 * self.pause, self.LAST)
        return pause
