# SPDX-License-Identifier: Apache-2.0
"""The last roster that a client has accepted, and what it says of the next one.

A client works with its own copy of the roster. Another one takes its place only if it follows: of
the same keeper and federation, and later. So whoever gives a client its files cannot take it back
to an old roster or to one of his own.
"""

from pathlib import Path

from agnosticfl.deploy.fingerprint import roster_words
from agnosticfl.deploy.keys import read_small
from agnosticfl.deploy.roster import (
    MOST_BYTES,
    Roster,
    changes,
    read_roster,
    roster_digest,
    write_roster,
)
from agnosticfl.errors import check

FILE = "accepted.roster"  # in a client's state folder
SERVED = "served.roster"  # in a server's


def accept(path: Path, accepted: Path, anew: bool = False) -> list[str]:
    """Makes the roster at `path` the accepted one, if it follows that; what changed, in lines.

    Args:
      anew: takes any roster, whatever was accepted before.
    """
    content = read_small(path, MOST_BYTES)
    if accepted.exists() and accepted.read_bytes() == content:
        return []
    new = read_roster(path)
    if accepted.exists():
        old = read_roster(accepted)
        if not anew:
            check_follows(old, new, str(path))
        lines = changes(old, new)
    else:
        lines = [f"the first one here, of {new.federation} with {len(new.members)} members"]
    write_roster(accepted, new)
    lines.append(f"to be compared with the keeper's words: {roster_words(new)}")
    return [f"roster {new.serial}: {line}" for line in lines]


def check_follows(old: Roster, new: Roster, where: str) -> None:
    """Refuses a roster that does not come after the accepted one."""
    anew = "if all members know of that, start the client with --new-roster, or the server again"
    check(new.keeper == old.keeper, f"{where} has another keeper than the accepted roster; {anew}")
    check(
        new.federation == old.federation,
        f"{where} is of federation {new.federation!r}, and not of {old.federation!r}; {anew}",
    )
    check(
        new.serial >= old.serial,
        f"{where} is roster {new.serial}, and {old.serial} was accepted already; {anew}",
    )
    same = roster_digest(new) == roster_digest(old)
    check(
        new.serial > old.serial or same,
        f"{where} is roster {new.serial} with another content than the accepted one; {anew}",
    )
    check(
        new.serial != old.serial + 1 or new.previous == roster_digest(old),
        f"{where} follows another roster {old.serial} than the accepted one; {anew}",
    )
