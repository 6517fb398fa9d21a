# SPDX-License-Identifier: Apache-2.0
"""What a client's operator allows: which runs, and in how many rounds of a run it takes part."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from agnosticfl.deploy.node.ledger import Ledger
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_json

ROUNDS = "rounds.json"  # in a client's state folder
LEDGER = "privacy.json"  # likewise: what it has spent of its privacy


class Allowance(NamedTuple):
    """What is allowed in one run."""

    run: str
    most_rounds: int = 0  # 0: as many as the task has
    taken: Path | None = None  # the file with the rounds that were taken part in
    consent: Path | None = None  # the file with the names of runs that are allowed
    ledger: Ledger | None = None  # of its privacy, if the run is private

    def unwilling(self, name: str, t: int = 0) -> str | None:
        """Why the client takes no part in the round of that name and number; None if it may."""
        if self.consent is not None and self.run not in read_consented(self.consent):
            return f"its operator has not written {self.run} into {self.consent}"
        spent = None if self.ledger is None else self.ledger.unwilling(t)
        if spent is not None or not self.most_rounds or self.taken is None:
            return spent
        before = read_taken(self.taken).get(self.run, [])
        if name in before or len(before) < self.most_rounds:
            return None
        return f"it took part in {len(before)} rounds of {self.run}, the most its operator allows"

    def take(self, name: str, t: int = 0) -> None:
        """Writes down a round before its work is done; `BadInput` if it is not allowed.

        If clients add noise, each time is charged, also that of an attempt at the same round.
        """
        reason = self.unwilling(name, t)
        check(reason is None, str(reason))
        if self.ledger is not None:
            self.ledger.charge(t)
        if not self.most_rounds or self.taken is None:
            return
        known = read_taken(self.taken)
        before = known.setdefault(self.run, [])
        if name not in before:
            before.append(name)
            write_json(self.taken, known)


def read_consented(path: Path) -> set[str]:
    """The names of runs in a file, one per line; what follows a # is for people."""
    if not path.exists():
        return set()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.partition("#")[0].strip() for line in lines} - {""}


def read_taken(path: Path) -> dict[str, list[str]]:
    """The rounds that were taken part in, by run."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
    except msgspec.MsgspecError as error:
        raise BadInput(
            f"{path}, which counts this client's rounds, cannot be read: {error}"
        ) from None
