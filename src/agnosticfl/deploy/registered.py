# SPDX-License-Identifier: Apache-2.0
"""The server's folder of clients, brought in line with a roster."""

import hashlib
from pathlib import Path

from agnosticfl.deploy.roster import Roster
from agnosticfl.files import write_whole

REMOVED = "removed"  # where public keys lie that do not count any more


def register_members(roster: Roster, clients: Path) -> list[str]:
    """Lets in the members of a roster with the node keys on their cards, and nobody else.

    Returns what was changed, in lines.
    """
    clients.mkdir(parents=True, exist_ok=True)
    keys = {f"{card.name}.pub": card.node_key for card in roster.members}
    lines: list[str] = []
    for path in sorted(clients.glob("*.pub")):
        wanted = keys.get(path.name)
        content = path.read_bytes()
        if wanted is not None and content.strip() == wanted.encode():
            keys.pop(path.name)
            continue
        _put_away(path, content)
        if wanted is None:
            lines.append(f"{path.stem} is not in the roster: its key is in {REMOVED}/")
    for name, key in keys.items():
        write_whole(clients / name, key)
        lines.append(f"{name.removesuffix('.pub')} has the node key of roster {roster.serial}")
    return lines


def _put_away(path: Path, content: bytes) -> None:
    folder = path.parent / REMOVED
    folder.mkdir(exist_ok=True)
    mark = hashlib.sha256(content).hexdigest()[:16]  # one name can have had several keys
    path.replace(folder / f"{path.stem}-{mark}.pub")
