# SPDX-License-Identifier: Apache-2.0
"""How much anybody may ask of the gate."""

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple

from agnosticfl.errors import BadInput, check

MARGIN = 32 * 2**20  # bytes of a message beside the numbers of the model, and Flower's own pieces
BURST = 10.0  # seconds' worth of a rate that may come at once
MOST = 2**40  # of any limit
MANY = 10_000  # buckets to keep before full ones are thrown away


class Limits(NamedTuple):
    """What `deploy server --limit NAME=VALUE` can change (with - for _)."""

    connections: int = 1024  # at once, of all; a client that waits holds one
    address_connections: int = 64  # at once, of one address
    address_rate: float = 100.0  # connections per second, and requests, of one address
    node_requests: int = 16  # at once, of one client
    node_rate: float = 50.0  # requests per second of one client
    message: int = MARGIN  # bytes of a request's body
    head_seconds: float = 20.0  # until a connection's next request has begun
    request_seconds: float = 600.0  # until a request is answered, body and answer included


def limits_from(changes: Mapping[str, Any], defaults: Limits) -> Limits:
    """`defaults` with some changed by their names on the command line."""
    known = {name.replace("_", "-"): name for name in Limits._fields}
    for name, value in changes.items():
        if name not in known:
            raise BadInput(f"unknown limit {name!r}; there are {', '.join(known)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        check(
            number and 0 < value <= MOST,
            f"the limit {name} is {value!r}; it must be a positive number up to 2^40",
        )
        whole = isinstance(getattr(defaults, known[name]), float) or isinstance(value, int)
        check(whole, f"the limit {name} is {value!r}; it must be a whole number")
    return defaults._replace(**{known[name]: value for name, value in changes.items()})


class Buckets:
    """A bucket of tokens for everybody, which fills at `rate` per second."""

    def __init__(self, rate: float):
        self.rate, self.full = rate, max(rate * BURST, 1.0)
        self.held: dict[object, tuple[float, float]] = {}  # tokens at some time

    def take(self, who: object, now: float) -> bool:
        """Whether there was a token left for `who`."""
        tokens, then = self.held.get(who, (self.full, now))
        tokens = min(self.full, tokens + self.rate * (now - then))
        if len(self.held) > MANY:
            self._forget(now)
        self.held[who] = (max(tokens - 1.0, 0.0) if tokens >= 1.0 else tokens, now)
        return tokens >= 1.0

    def put_back(self, who: object) -> None:
        """Puts back the token that `who` took last."""
        tokens, then = self.held[who]
        self.held[who] = (min(self.full, tokens + 1.0), then)

    def _forget(self, now: float) -> None:
        """Drops full buckets, which are as good as none; if all are in use, all."""
        kept = {
            who: (tokens, then)
            for who, (tokens, then) in self.held.items()
            if tokens + self.rate * (now - then) < self.full
        }
        self.held = kept if len(kept) <= MANY else {}


def neighbourhood(host: str) -> str:
    """Whom a limit per address counts as one: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
