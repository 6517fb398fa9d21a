# SPDX-License-Identifier: Apache-2.0
"""What a private run has spent: `privacy.json`, written before what it charges is seen."""

from pathlib import Path
from typing import Any

from agnosticfl.channels import dp
from agnosticfl.channels.dp.questions import Answers
from agnosticfl.core.evaluate import Evaluation
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.errors import check
from agnosticfl.files import read_json, write_json
from agnosticfl.runs import looks, processes
from agnosticfl.runs.build import Built
from agnosticfl.runs.folder import SPENT
from agnosticfl.runs.looks import Look
from agnosticfl.runs.questions import AT_THE_END, Question, num_questions


class Spending:
    """Charges rounds and looks ahead of them; of a run that is not private, nothing.

    Rounds that a resume repeats are charged again, and the noise of the rest is found for what is
    left: `state` is the state to go on from. A run that would go past its budget is refused.
    """

    def __init__(self, built: Built, out: Path, state: ServerState):
        self._built, self._file, self._done = built, out / SPENT, int(state.round)
        self._rounds, self._looks = self._done, dict[str, int]()
        self._asked = 0  # questions to those who train
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
            self._asked = self._asked_before(before.get("asked"))

    def charge(self, rounds: int) -> None:
        """Charges all rounds up to this one."""
        self._rounds = rounds
        self._write()

    def write_statement(self) -> dict[str, Any]:
        """Writes down what is spent by now, and returns it as the file says it."""
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
            if not self._paid_for(asked):
                return self._nothing_seen()
            self._asked += 1
            self._write()
            known[asked.number] = inner(params, asked)
            return known[asked.number]

        return built._replace(judge=judge)

    def _asked_before(self, said: dict[str, Any] | None) -> int:
        """How many questions were asked, with the noise that is counted with."""
        if said is None or self._answers is None:
            return 0
        noise, now = float(said["noise_multiplier"]), self._answers.scale.noise
        check(
            noise == now,
            f"dp: what clients said of models so far had noise multiplier {noise:.4g} and would"
            f" have {now:.4g} by now; go on with the rounds, evaluation_every and metric that"
            " the run was started with",
        )
        return int(said["questions"])

    def _paid_for(self, asked: Question) -> bool:
        """Of questions with noise of their own, so many are; those at the end are set aside."""
        answers = self._answers
        set_aside = len(AT_THE_END) if asked.look else 0
        return answers is None or self._asked < answers.number - set_aside

    def _nothing_seen(self) -> Evaluation:
        built, none = self._built, dict.fromkeys(self._built.readings)
        domains = dict.fromkeys(built.data.train.domains, none)
        return Evaluation(domains, none, None, None, examples=())

    @property
    def _answers(self) -> Answers | None:
        return None if self._built.privacy is None else self._built.privacy.answers

    def _questions_left(self) -> int:
        """Those that are charged like rounds."""
        config = self._built.config
        if config.evaluation_by == "server" or self._answers is not None:
            return 0
        looks = self._done // config.evaluation_every if config.evaluation_every else 0
        return num_questions(config) - looks

    def charge_look(self, split: str, found: Evaluation, last: bool = False) -> Evaluation | None:
        """Charges a look at the clients of a split; what may be seen of it, None if that is spent.

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
        assert found.measured is not None  # where clients evaluate, there are no looks
        return looks.noised(look, data, found.measured, built.readings, built.secrets)

    def _write(self) -> None:
        built = self._built
        if built.privacy is None or not processes.is_first():
            return
        answers, since = self._answers, self._rounds - self._done
        if answers is None:
            since += self._asked  # each is a sum like a round's
        said = dp.statement(built.privacy, self._plans, since)
        if answers is not None:
            said["asked"] = {
                "questions": self._asked,
                "paid_for": answers.number,  # in epsilon, from the first round on
                "noise_multiplier": answers.scale.noise,
            }
        measured = looks.statement(built.config, built.looks, self._looks)
        write_json(self._file, {**said, **({"measured": measured} if measured else {})})
