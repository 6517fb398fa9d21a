# SPDX-License-Identifier: Apache-2.0
"""What a server says of itself to its clients: what it serves, in digests and versions."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from agnosticfl.errors import BadInput
from agnosticfl.files import write_json

FILE = "served.json"  # in a server's state folder
TERMS = "terms"  # in the record of a message by which its round is known
MOST_BYTES = 2**16


class Served(msgspec.Struct, frozen=True):
    """What is served, and as whom a client is known that asks. Empty as long as nothing is."""

    run: str = ""  # its name
    flower: str = ""  # the version of Flower
    terms: dict[str, str] = {}  # what must be the same on all machines, by name
    client: str = ""


def write_served(path: Path, app: Path, roster: str) -> None:
    """Writes down what the server with that app and roster (the path of one, or nothing) serves."""
    from agnosticfl.deploy.agree import terms_of  # here: the gate does without
    from agnosticfl.deploy.app import PACKAGE
    from agnosticfl.deploy.roster import read_roster
    from agnosticfl.deploy.task import read_task

    task = read_task(app / PACKAGE)
    secure = task.config.secure is not None
    terms = terms_of(task, read_roster(Path(roster)) if secure and roster else None)
    write_json(path, msgspec.to_builtins(Served(task.run, version("flwr"), terms)))


def served_bytes(path: Path, client: str) -> bytes:
    """What one client is told, from the file that `write_served` wrote."""
    served = parse_served(path.read_bytes()) if path.exists() else Served()
    return msgspec.json.encode(msgspec.structs.replace(served, client=client))


def parse_served(content: bytes) -> Served:
    """What a server says of itself, or `BadInput`."""
    try:
        return msgspec.json.decode(content[:MOST_BYTES], type=Served)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadInput("what the server says of itself cannot be read") from None


def terms_record(terms: Mapping[str, str]) -> dict[str, str]:
    """Terms as a message in the clear states them; nothing if there are none."""
    return {TERMS: msgspec.json.encode(terms).decode()} if terms else {}


def differences(own: dict[str, str], message: Mapping[str, Any]) -> list[str]:
    """In what the server differs by what its message states, which may be nothing."""
    if TERMS not in message:
        return []
    try:
        there = msgspec.json.decode(str(message[TERMS])[:MOST_BYTES], type=dict[str, str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ["what the server says of its terms cannot be read"]
    return differing_terms(own, there)


def differing_terms(own: dict[str, str], served: dict[str, str]) -> list[str]:
    """In what a server differs from a client, a line for each term."""
    lines: list[str] = []
    for name in sorted(own.keys() | served.keys()):
        here, there = own.get(name, "none"), served.get(name, "none")
        if here != there:
            lines.append(f"{name} is {_short(here)} here, and {_short(there)} on the server")
    return lines


def _short(term: str) -> str:
    """Words as they are; a digest by its first digits."""
    words = [word[:12] + "…" if len(word) > 40 else word for word in term.split()]
    return ascii(" ".join(words)[:80])[1:-1].replace("\\u2026", "…")
