# SPDX-License-Identifier: Apache-2.0
"""What a server keeps of its secure sums, beside the run folder."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from agnosticfl.deploy.flower.federation import Attempt
from agnosticfl.files import write_bytes
from agnosticfl.secagg.primitives import KEY, digest


class KeptSum(NamedTuple):
    """The last sum that was opened: should the server die now, clients will not open it again."""

    path: Path
    run: bytes

    def read(self, t: int, sent: bytes) -> np.ndarray | None:
        """The sum of round t for what was sent, if it was opened before this process began."""
        content = self.path.read_bytes() if self.path.exists() else b""
        kept = content[:KEY] == self._name(t, sent)
        return np.frombuffer(content[KEY:], "<u4") if kept else None

    def write(self, t: int, sent: bytes, total: np.ndarray) -> None:
        """Keeps a sum in the place of the one before it."""
        write_bytes(self.path, self._name(t, sent) + total.tobytes())

    def _name(self, t: int, sent: bytes) -> bytes:
        return digest(b"sum", self.run, t.to_bytes(8, "big"), sent)


class AskedSums(NamedTuple):
    """A line for each sum that vectors were asked for: clients have paid for it from then on."""

    path: Path
    run: bytes

    def note(self, attempt: Attempt) -> None:
        """Adds one."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self._name} {attempt.kind}-{attempt.round}-{attempt.number}\n")

    def num_noted(self) -> int:
        """How many there were in this run, those of processes that died among them."""
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        return sum(line.rpartition(" ")[0] == self._name for line in lines)

    @property
    def _name(self) -> str:
        return self.run.decode(errors="replace")
