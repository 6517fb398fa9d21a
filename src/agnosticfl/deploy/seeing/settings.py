# SPDX-License-Identifier: Apache-2.0
"""Where the page of a server is, and who may see it, as whoever starts it tells its process."""

import ipaddress
from pathlib import Path
from typing import NamedTuple

from agnosticfl.errors import BadInput, check

SHORTEST, LONGEST = 12, 1024  # characters of a password
OTHERS = 0o077  # what nobody but its owner may do with a password's file


class PageSettings(NamedTuple):
    """What the page's process is told."""

    host: str
    port: int
    state: str  # the folder that the server keeps its status in
    keys: str = ""  # the folder with server.pem and server.key; with a password there is TLS
    password: str = ""  # the file; empty on loopback, for the server's own user


def address_of(settings: PageSettings) -> str:
    """What to type into a browser."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http{'s' * bool(settings.password)}://{host}:{settings.port}/"


def page_settings(address: str, state: Path, keys: Path, password: Path | None) -> PageSettings:
    """Of `--page ADDRESS` and `--password FILE`; `BadInput` if they do not go together."""
    host, _, digits = address.rpartition(":")
    host = host.strip("[]")
    known = host != "" and digits.isdecimal() and 0 < int(digits) < 2**16
    check(known, f"--page is {address!r}; it must be HOST:PORT, or none")
    check(
        password is not None or is_loopback(host),
        f"--page is {address!r}, which others than this machine reach: --password FILE is needed",
    )
    if password is not None:
        read_password(password)
    file = "" if password is None else str(password.resolve())
    return PageSettings(host, int(digits), str(state.resolve()), str(keys.resolve()), file)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address (of IPv4: whose it is can be told there)."""
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def read_password(path: Path) -> str:
    """The first line of a file that is its owner's alone."""
    check(path.is_file(), f"there is no file {path}")
    check(not path.stat().st_mode & OTHERS, f"others can read {path}: chmod 600 {path}")
    try:
        first = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no text") from None
    check(
        SHORTEST <= len(first) <= LONGEST,
        f"the password in {path} has {len(first)} characters; it must have {SHORTEST} to {LONGEST}",
    )
    return first
