# SPDX-License-Identifier: Apache-2.0
"""Who may pass: the holders of the node keys whose public halves lie in a folder.

Flower's SuperNode has no certificate of its own to show, but it sends its public key with every
request, a time, and its signature under that time. The SuperLink checks the same, behind the gate.
Beyond that, the gate takes no signature twice.
"""

import binascii
import datetime
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agnosticfl.deploy.gate.refusals import Refused
from agnosticfl.deploy.gate.routes import PUBLIC_KEY, SIGNATURE, TIMESTAMP
from agnosticfl.deploy.keys import UNREADABLE

AHEAD, BEHIND = 5.0, 305.0  # seconds that a client's clock may differ, as Flower has them
LOOK = 2.0  # seconds between two looks at the folder

_PEM = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Member(NamedTuple):
    """A client: the name of its file, and its key."""

    name: str
    key: ec.EllipticCurvePublicKey


class Members:
    """The clients, as their folder is now: a file that is put there or removed counts at once."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self.folder, self.clock = folder, clock
        self.opened = clock()
        self._looked = float("-inf")
        self._files: dict[Path, tuple[tuple[int, int], tuple[bytes, Member] | None]] = {}
        self._members: dict[bytes, Member] = {}
        self._used: dict[bytes, Used] = {}  # also of clients that were removed

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Member:
        """The client that sent a request with these headers; `Refused` if it is none."""
        public, signature, timestamp = claim(list(headers))
        member = self.members().get(public)
        if member is None:
            raise Refused(404, "a node key that is not in the folder of clients")
        now = self.clock()
        age = now - _seconds(timestamp)
        if not -AHEAD < age < BEHIND:
            raise Refused(401, f"the clock of {member.name} differs by {age:.0f} s")
        try:
            member.key.verify(signature, timestamp, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Refused(401, f"the signature is not that of {member.name}") from None
        if now - age < self.opened:  # what was used before is not known
            raise Refused(503, f"{member.name} signed before the gate was open")
        if not self._used.setdefault(public, Used()).add(timestamp, now, now - age + BEHIND):
            raise Refused(401, f"a signature of {member.name} came twice")
        return member

    def members(self) -> dict[bytes, Member]:
        """All clients by their keys, as Flower writes these."""
        now = self.clock()
        if not 0 <= now - self._looked < LOOK:
            self._looked = now
            self._look()
        return self._members

    def _look(self) -> None:
        files: dict[Path, tuple[tuple[int, int], tuple[bytes, Member] | None]] = {}
        for path in sorted(self.folder.glob("*.pub")):
            try:
                stat = path.stat()
                version = (stat.st_mtime_ns, stat.st_size)
                old = self._files.get(path)
                files[path] = old if old and old[0] == version else (version, read_member(path))
            except OSError:  # removed in this moment
                continue
        self._files = files
        self._members = dict(entry for _, entry in files.values() if entry is not None)


class Used:
    """The times that a client has signed, for as long as they would be taken."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.order: deque[tuple[float, bytes]] = deque()

    def add(self, timestamp: bytes, now: float, until: float) -> bool:
        """Whether it is new. Of a signature others can be made, so it is the time that counts."""
        while self.order and self.order[0][0] < now:
            self.known.discard(self.order.popleft()[1])
        if timestamp in self.known:
            return False
        self.known.add(timestamp)
        self.order.append((until, timestamp))
        return True


def claim(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes, bytes]:
    """The public key that a request comes with, its signature, and what is signed."""
    found: list[bytes] = []
    for wanted in (PUBLIC_KEY, SIGNATURE, TIMESTAMP):
        values = [value for name, value in headers if name == wanted]
        if len(values) != 1:
            raise Refused(404, "no node key")
        found += values
    public, signature, timestamp = found
    try:
        return b64decode(public, validate=True), b64decode(signature, validate=True), timestamp
    except binascii.Error:
        raise Refused(404, "no node key") from None


def read_member(path: Path) -> tuple[bytes, Member] | None:
    """The key in a .pub file as Flower writes it, and whose it is; None if it is no such key."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except UNREADABLE:
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return None
    return key.public_bytes(*_PEM), Member(path.stem, key)


def _seconds(timestamp: bytes) -> float:
    """A time as ISO 8601 writes it, with its zone, in seconds since 1970."""
    try:
        moment = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        if moment.tzinfo is not None:
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass
    raise Refused(401, "no time that is signed")
