# SPDX-License-Identifier: Apache-2.0
"""What a client has spent of its privacy: every vector that it sent, counted before it leaves.

Once a masked vector has left, the others can open a sum with it without this client, which does not
learn whether they did; an attempt that fails is therefore counted like one that succeeds. ρ of all
sums is added up (zero-concentrated privacy), and nothing is gained by sampling, which a client
cannot verify. The file is synced before the vector leaves, and only its owner reads it.

Where a server is trusted with the sum and adds noise that later rounds take back, what a sum costs
holds only if this client's rounds lie far enough apart, so it takes part in none that comes sooner.
Of the attempts at one round such a server releases one, which counts once.
"""

import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_bytes
from agnosticfl.privacy.accounting import concentrated_epsilon

ENOUGH = 1e-9  # of ε: by how much adding up may be off


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was spent in one run."""

    sums: int = 0
    rho: float = 0.0
    last: int = 0  # number of the last round that it sent a vector for, if rounds must lie apart


class Spent(NamedTuple):
    """What is spent, and of what, at δ."""

    epsilon: float  # in the run
    budget: float
    all_runs: float  # ε of all runs together
    most: float | None  # of that, as the operator wants it
    delta: float
    sums: int  # of the run


class Ledger(NamedTuple):
    """The ledger of a client in one run."""

    file: Path
    run: str
    each: float  # ρ of a sum
    epsilon: float  # the most in this run
    delta: float
    most: float | None = None  # ε of all runs in the file, if the operator wants that limited
    separation: int = 0  # rounds from one of this client to its next, at least; 0: any

    def spent(self, more: int = 0) -> Spent:
        """What is spent, or would be with so many sums more."""
        rows = read(self.file)
        own = rows.get(self.run, Row())
        extra = more * self.each
        everything = sum(row.rho for row in rows.values()) + extra
        return Spent(
            concentrated_epsilon(own.rho + extra, self.delta),
            self.epsilon,
            concentrated_epsilon(everything, self.delta),
            self.most,
            self.delta,
            own.sums + more,
        )

    def unwilling(self, t: int | None = None) -> str | None:
        """Why it takes no part in one more sum, that of round t if it is known; None if it does."""
        if self._again(t):
            return None
        last = self._own().last
        if t is not None and last and t < last + self.separation:
            return (
                f"its last round in {self.run} was {last}, and round {t} comes too soon: there must"
                f" be {self.separation} from one to the next"
            )
        now, after = self.spent(), self.spent(1)
        if after.epsilon > self.epsilon * (1 + ENOUGH):
            return (
                f"its privacy budget in {self.run} is spent: ε {now.epsilon:.3g} of"
                f" {self.epsilon:g} at δ {self.delta:g}, with {now.sums} sums"
            )
        if self.most is not None and after.all_runs > self.most * (1 + ENOUGH):
            return (
                f"its privacy budget for all runs is spent: ε {now.all_runs:.3g} of {self.most:g}"
                f" at δ {self.delta:g}, the most its operator allows"
            )
        return None

    def charge(self, t: int = 0) -> None:
        """Writes down one more sum, before its vector leaves; `BadInput` if it takes no part."""
        reason = self.unwilling(t)
        check(reason is None, str(reason))
        if self._again(t):
            return
        rows = read(self.file)
        own = rows.get(self.run, Row())
        rows[self.run] = Row(own.sums + 1, own.rho + self.each, t if self.separation else 0)
        table = {run: msgspec.structs.asdict(row) for run, row in rows.items()}
        write_bytes(self.file, (json.dumps(table, indent=2) + "\n").encode(), mode=0o600)

    def _own(self) -> Row:
        return read(self.file).get(self.run, Row())

    def _again(self, t: int | None) -> bool:
        """Whether this is another attempt at a round of which one sum is released."""
        return self.separation > 0 and t == self._own().last


def read(path: Path) -> dict[str, Row]:
    """What was spent, by run."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Row])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path}, which says what this client has spent of its privacy, cannot be read: {error}"
        ) from None
