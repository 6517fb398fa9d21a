# SPDX-License-Identifier: Apache-2.0
"""What a private run has spent: `privacy.json`, written before what it charges is seen."""

from pathlib import Path
from typing import Any

from agnosticfl.channels import dp
from agnosticfl.core.evaluate import Evaluation
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.files import read_json, write_json
from agnosticfl.runs import looks, processes
from agnosticfl.runs.build import Built
from agnosticfl.runs.folder import SPENT
from agnosticfl.runs.looks import Look
from agnosticfl.runs.questions import Question, num_questions


class Spending:
    """Charges rounds and looks ahead of them; of a run that is not private, nothing.

    Rounds that a resume repeats are charged again, and the noise of the rest is found for what is
    left: `state` is the state to go on from. A run that would go past its budget is refused.
    """

    def __init__(self, built: Built, out: Path, state: ServerState):
        self._built, self._file, self._done = built, out / SPENT, int(state.round)
        self._rounds, self._looks = self._done, dict[str, int]()
        self._asked = 0  # of those who train: sums of an evaluation
        self.state, self._plans = state, list[Any]()
        if built.privacy is None:
            return
        file = self._file
        before = processes.from_first(lambda: read_json(file) if file.exists() else None)
        sums = built.config.rounds + self._questions_left()
        self.state, self._plans = dp.going_on(built.privacy, state, before, sums, str(file))
        if before is not None:
            measured: dict[str, Any] = before.get("measured", {})
            self._looks = {split: int(said["looks"]) for split, said in measured.items()}

    def charge(self, rounds: int) -> None:
        """All rounds up to this one."""
        self._rounds = rounds
        self._write()

    def told(self) -> dict[str, Any]:
        """What is spent by now, as the file then says."""
        self._write()
        return read_json(self._file)

    def counting(self, built: Built) -> Built:
        """The same, whose clients are charged for what they say of models before they say it."""
        inner, known = built.judge, dict[int, Evaluation]()
        if built.privacy is None or built.privacy.federation is not None or inner is None:
            return built

        def judge(params: Params, asked: Question) -> Evaluation:
            if asked.number in known:  # the same model, and the same clients
                return known[asked.number]._replace(sent=Bytes(0, 0))
            self._asked += 1
            self._write()
            known[asked.number] = inner(params, asked)
            return known[asked.number]

        return built._replace(judge=judge)

    def _questions_left(self) -> int:
        config = self._built.config
        if config.evaluation_by == "server":
            return 0
        looks = self._done // config.evaluation_every if config.evaluation_every else 0
        return num_questions(config) - looks

    def noised(self, split: str, found: Evaluation, last: bool = False) -> Evaluation | None:
        """What may be seen of a look at the clients of a split; None if its budget is spent.

        Args:
          last: whether the run is over; until then the last looks are set aside.
        """
        look = self._built.looks.get(split)
        if look is None:
            return found
        if self._looks.get(split, 0) >= look.looks - (0 if last else self._set_aside()):
            return None
        self._looks[split] = self._looks.get(split, 0) + 1
        self._write()
        return self._seen(look, split, found)

    def _set_aside(self) -> int:
        config = self._built.config
        return 1 + config.mean_model + (config.evaluation_every > 0)

    def _seen(self, look: Look, split: str, found: Evaluation) -> Evaluation:
        built = self._built
        data = built.data.test if split == "test" else built.data.heldout
        assert data is not None
        assert built.secrets is not None
        assert found.measured is not None  # where clients evaluate, dp is refused
        return looks.noised(look, data, found.measured, built.readings, built.secrets)

    def _write(self) -> None:
        built = self._built
        if built.privacy is None or not processes.is_first():
            return
        since = self._rounds - self._done + self._asked
        said = dp.statement(built.privacy, self._plans, since)
        measured = looks.statement(built.looks, self._looks)
        write_json(self._file, {**said, **({"measured": measured} if measured else {})})
