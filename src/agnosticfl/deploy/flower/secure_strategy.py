# SPDX-License-Identifier: Apache-2.0
"""The same strategy under secure aggregation: the server learns the sum and nothing else.

    query.join     who takes part, and by which registered key
    query.secure   keys; shares; survivors; unmasking
    train          the masked vector, with the work of the round before it

The first three of these six exchanges prepare a round. While the sum of a round is opened, the next
one is prepared with the same messages (`coming`), so that three exchanges are left of it; where
that fails, or a round did, the next one begins with all six.

Who is lost in any of these steps is left out of the sum, or taken out of it, as long as enough are
left; if not, the attempt is abandoned and the round tried again, with new keys. Where too few are
left because some have declined who had joined, the round is prepared anew within the same attempt:
nothing went wrong, and nobody is to blame. A client helps to
open one sum of a round only, so a sum is kept as soon as it is open, and a round that is lost while
it is being opened is given up: the model stays as it was.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.deploy import wire
from agnosticfl.deploy.agree import of_kind
from agnosticfl.deploy.flower.coming import STEP, Coming
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    RoundPolicy,
    enough_vectors,
    gather,
    num_asked,
    request,
    say,
    select,
    stamp,
)
from agnosticfl.deploy.flower.patience import Patience
from agnosticfl.deploy.flower.records import (
    AHEAD,
    ARRAYS,
    DECLINED,
    REQUEST,
    ROUND,
    SECURE,
    to_record,
)
from agnosticfl.deploy.flower.standing import Standing, who_left
from agnosticfl.deploy.flower.strategy import AgnosticStrategy, Way
from agnosticfl.deploy.flower.willing import Looking
from agnosticfl.deploy.task import EVALUATION, TRAINING
from agnosticfl.errors import check
from agnosticfl.files import write_bytes
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.secagg.agreement import Agreement, in_words, num_with_domain
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.primitives import KEY, Ed25519PrivateKey, digest, verify_key

VECTORS = "masked vectors"  # the stage of `Opening` in which clients do their work
SURVIVORS = "survivors"  # and the one after it


class SecureStrategy(AgnosticStrategy):
    """`AgnosticStrategy` whose sums are secure.

    Args:
      standing: who is in the federation.
      key: of the server, whose public half is in the app.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        policy: RoundPolicy,
        data: Splits,
        standing: Standing,
        key: Ed25519PrivateKey,
        model: Model | None = None,
    ):
        super().__init__(config, folder, policy, data, model)
        self.standing, self.key = standing, key
        own = verify_key(key) == standing.agreement.server
        check(own, "the server's signing key is not the app's")
        # Beside the run folder, a line for each sum that vectors were asked for.
        self._asked = folder.with_name(f"{folder.name}.asked")
        self._run = standing.agreement.run.decode(errors="replace")
        asked, room = num_asked(policy), most_clients(config)
        check(
            asked <= room,
            f"over-selection {policy.over_selection} asks {asked} clients, and the numbers of a sum"
            f" have room for {room}; make the app with --set secure.most_clients={asked}",
        )
        # Noise that later rounds take back asks for rounds between two of one client. Nobody is
        # asked beyond those who are needed, since their turn would be lost.
        correlated = self.privacy.strategy if self.privacy else None
        self._apart = correlated.separation if correlated else 0
        self._took: dict[int, int] = {}  # node -> the last round it was asked for its vector in
        if correlated:
            self.policy = self.policy._replace(over_selection=1.0)
        self.kind = TRAINING  # of the sums
        self._next: Coming | None = None  # the next round, if it was prepared
        # Beside the run folder: if this process dies now, clients will not open this sum again.
        self._kept = folder.with_name(f"{folder.name}.sum")

    @property
    def agreement(self) -> Agreement:
        """For sums of this kind, with the roster of now."""
        return of_kind(self.standing.agreement, self.config, self.kind)

    def summary(self) -> None:
        super().summary()
        agreement = self.agreement
        LOG.info(in_words(self.policy.clients, agreement.dishonest, agreement.dropout))

    def asking(self, kind: str, number: int, way: Way) -> Self:
        other = super().for_kind(kind, number, way)
        place = self.folder.with_name(f"{self.folder.name}.sums")
        place.mkdir(exist_ok=True)
        # Reports are of one round after the other; what a model was judged by is asked for again.
        other._kept = place / (f"{kind}-{number}" if kind == EVALUATION else kind)
        other.kind, other._next = kind, None
        return other

    def sums_asked(self) -> int:
        lines = self._asked.read_text("utf-8").splitlines() if self._asked.exists() else []
        return sum(line.rpartition(" ")[0] == self._run for line in lines)

    def _note_asked(self, attempt: Attempt) -> None:
        if self.privacy is not None:
            with self._asked.open("a", encoding="utf-8") as file:
                file.write(f"{self._run} {attempt.kind}-{attempt.round}-{attempt.number}\n")

    def attempt(self, grid: Grid, sent: Broadcast, attempt: Attempt) -> Any:
        """Σ_k over the clients that stay to the end, or `Abandoned`."""
        sizes = wire.sizes(self.message)
        check(set(sizes) == {"int32"}, f"a secure sum is one of int32, and not of {sizes}")
        bits = self.channel.bits
        short = 0 if bits is None else jax.tree.leaves(self.message)[0].size
        arrays = tree.named(sent)
        total = self._kept_sum(attempt.round, wire.digest(attempt.round, arrays))
        if total is None:
            total = self._open_sum(grid, sent, arrays, attempt, sizes["int32"], short, bits or 32)
        return wire.unpack({"int32": total.view(np.int32)}, self.message)

    def _open_sum(
        self,
        grid: Grid,
        told: Broadcast,
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
        length: int,
        short: int,
        bits: int,
    ) -> np.ndarray:
        """Opens the sum of one secure round."""
        self.standing.follow(attempt)
        sent = wire.digest(attempt.round, arrays)
        looking = Looking(self.policy, attempt)
        total = None
        while total is None:
            coming = self._prepare(grid, attempt, looking)
            self._took |= dict.fromkeys(coming.nodes.values(), attempt.round)
            opening = Opening(coming.prepared, attempt.round, length, short, bits, sent)  # type: ignore[arg-type]
            total = self._open_prepared(grid, told, arrays, attempt, looking, coming, opening)
        if not self._apart:  # a sum that has no noise yet is nowhere but in memory
            write_bytes(self._kept, self._name(attempt.round, sent) + total.tobytes())
        return total

    def _open_prepared(
        self,
        grid: Grid,
        told: Broadcast,
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
        looking: Looking,
        coming: Coming,
        opening: Opening,
    ) -> np.ndarray | None:
        """Opens the sum of a round that is prepared; None if it has to be prepared anew."""
        following = self._plan_following(grid, attempt)
        self._note_asked(attempt)
        try:
            while opening.requests:
                self._step(grid, opening, coming.nodes, following, arrays, attempt)
            self._check_total(told, opening)
        except (Refused, Abandoned) as error:
            self._end(grid, coming, attempt)
            self._end(grid, following, attempt)
            if looking.excuse(who_left(coming, opening), str(error)):
                return None
            self.standing.learn(coming, opening, attempt)
            if not opening.unmasked:
                raise Abandoned(str(error)) from None
            # The sum was open, or nearly: no client would open another one of this round.
            LOG.warning("%s is given up, the model stays: %s", attempt.called, error)
            return np.zeros(opening.length, "<u4")
        self.standing.learn(coming, opening, attempt, well=True)
        LOG.info("%s: secure sum of %d clients", attempt.called, len(opening.survivors))
        self._next = following
        return opening.total

    def _prepare(self, grid: Grid, attempt: Attempt, looking: Looking) -> Coming:
        """Makes a round ready for its sum: the one that was prepared ahead, or another."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead.agreement == self.agreement:
            self.standing.note(ahead.cheated, attempt)
            if ahead.prepared and not ahead.nodes.keys() & self.standing.cheats.named:
                return ahead
        self._end(grid, ahead, attempt)
        while True:
            coming = self._invite(grid, attempt, looking)
            try:
                while coming.requests:
                    self._ask(grid, coming, attempt)
            except (Refused, Abandoned) as error:
                self._end(grid, coming, attempt)
                if looking.excuse(who_left(coming), str(error)):
                    continue
                self.standing.learn(coming, None, attempt)
                raise Abandoned(str(error)) from None
            self.standing.note(coming.cheated, attempt)
            return coming

    def _invite(self, grid: Grid, attempt: Attempt, looking: Looking) -> Coming:
        """Asks until enough clients have joined a round. Until then nobody has lost anything."""
        known = self.standing.left_out | self._resting(attempt.round)
        while True:
            asked = select(grid, self.policy, self.config.seed, attempt, known, looking.unwilling)
            coming = self._coming(asked, attempt)
            try:
                self._ask(grid, coming, attempt)
                return coming
            except Refused as error:
                connected = set(grid.get_node_ids()) - known
                if not looking.wait_to_ask_again(asked, coming.joined, connected, str(error)):
                    raise Abandoned(str(error)) from None

    def _plan_following(self, grid: Grid, attempt: Attempt) -> Coming | None:
        """The round after this one, to be prepared beside it."""
        last = self.kind != TRAINING or attempt.round >= self.agreement.rounds
        if last or self.standing.searching:
            return None
        after = Attempt(attempt.round + 1, 1, attempt.token)
        known = self.standing.left_out | self._resting(after.round)
        try:
            asked = select(grid, self.policy._replace(wait=0), self.config.seed, after, known)
        except Abandoned:
            return None
        return self._coming(asked, after)

    def _resting(self, t: int) -> set[int]:
        """The nodes whose last round is too near to round t."""
        return {node for node, last in self._took.items() if last < t < last + self._apart}

    def _coming(self, asked: Collection[int], attempt: Attempt) -> Coming:
        def admit(nodes: dict[int, int]) -> dict[int, int]:
            return self.standing.admit(nodes, self.policy, self.config.seed, attempt)

        return Coming(self.agreement, self.key, self.standing.take_number(), asked, admit)

    def _check_total(self, told: Broadcast, opening: Opening) -> None:
        """Refuses a sum that so many clients with these domains cannot have."""
        total = wire.unpack({"int32": opening.total.view(np.int32)}, self.message)  # type: ignore[union-attr]
        alive = opening.survivors
        held = [num_with_domain(self.agreement, name, alive) for name in self.data.train.domains]
        why = self.implausible(told, total, len(alive), held)
        if why is not None:
            raise Refused(f"the sum cannot be right: {why}")

    def _kept_sum(self, t: int, sent: bytes) -> np.ndarray | None:
        """The sum of round t, if it was opened before this process began."""
        content = self._kept.read_bytes() if self._kept.exists() else b""
        name = self._name(t, sent)
        return np.frombuffer(content[KEY:], "<u4") if content[:KEY] == name else None

    def _name(self, t: int, sent: bytes) -> bytes:
        return digest(b"sum", self.agreement.run, t.to_bytes(8, "big"), sent)

    def _end(self, grid: Grid, coming: Coming | None, attempt: Attempt) -> None:
        """Tells the clients of a round that is given up to forget its secrets."""
        if coming is None:
            return
        content = RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: coming.over})})
        nodes = coming.nodes.values()
        messages = [request(node, STEP, content, self.policy.step) for node in nodes]
        ready = Patience(1.0, lambda _: True)  # nothing depends on their answers
        gather(grid, messages, attempt, seconds=self.policy.step, patience=ready)

    def _ask(self, grid: Grid, coming: Coming, attempt: Attempt) -> None:
        """One exchange of a round that is being prepared, on its own."""
        messages = self._messages(coming, coming.requests, attempt)
        least = max(self.policy.minimum, self.agreement.fewest)
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=self.policy.step,
            stage=coming.stage,
            patience=self._patience(coming.suffices, least),
            refusal=_no_answer,
        )
        before = set(coming.dropped)
        for reply in gathered.replies:
            coming.receive(reply.metadata.src_node_id, _bytes(reply.content))
        for node in gathered.declined:
            coming.decline(node)
        coming.advance()
        self._say_dropped(coming.dropped, before, attempt)

    def _patience(self, suffices: Callable[[Collection[int]], bool], least: int) -> Patience:
        """With those who are silent at one stage: a tenth of those who are asked in it may well be.

        That is more than a tenth of the cohort in all its stages; whether enough are left is seen
        at each of them (`suffices`).
        """
        return Patience(self.agreement.dropout, lambda came: len(came) >= least and suffices(came))

    def _say_dropped(
        self, dropped: Mapping[int, str], before: Collection[int], attempt: Attempt
    ) -> None:
        new = dropped.keys() - set(before)
        self.standing.say_lost({at: f"is dropped: {dropped[at]}" for at in new}, attempt)

    def _messages(
        self, coming: Coming, requests: Mapping[int, bytes], attempt: Attempt
    ) -> list[Message]:
        return [
            request(
                node,
                coming.kind,
                RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: content})}),
                self.policy.step,
            )
            for node, content in requests.items()
        ]

    def _step(
        self,
        grid: Grid,
        opening: Opening,
        nodes: dict[int, int],
        following: Coming | None,
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
    ) -> None:
        """One exchange of a sum, with one of the round that is prepared beside it."""
        work = opening.stage == VECTORS
        seconds = self.policy.deadline if work else self.policy.step
        common = RecordDict({ROUND: stamp(attempt)})
        if work:
            common[ARRAYS] = to_record(arrays)
        ahead = dict(following.requests) if following else {}

        def secure(node: int, content: bytes) -> ConfigRecord:
            beside = {AHEAD: ahead.pop(node)} if node in ahead else {}
            return ConfigRecord({REQUEST: content, **beside})

        messages = [
            request(
                nodes[place],
                MessageType.TRAIN if work else STEP,
                RecordDict({**common, SECURE: secure(nodes[place], content)}),
                seconds,
            )
            for place, content in opening.requests.items()
        ]
        place_of = {nodes[place]: place for place in opening.requests}
        if following:
            messages += self._messages(following, ahead, attempt)
        room = enough_vectors(self.policy, len(nodes), self.agreement.dropout)

        def suffices(came: Collection[int]) -> bool:
            return opening.suffices({place_of[node] for node in came})

        # Who works slowly is not silent: c reports are waited for, though fewer would do.
        patience = self._patience(suffices, self.policy.clients if work else 0)
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=seconds,
            stage=opening.stage,
            enough=room if work else None,
            patience=patience,
            counted=place_of,
            refusal=_no_answer,
        )
        before = set(opening.dropped)
        known = set(following.dropped) if following else set[int]()
        for reply in gathered.replies:
            node, content = reply.metadata.src_node_id, _bytes(reply.content)
            if node in place_of:
                opening.receive(place_of[node], content)
                content = reply.content.config_records[SECURE].get(AHEAD)
            if following and isinstance(content, bytes):
                following.receive(node, content)
            elif following and isinstance(content, str):
                if content == DECLINED:
                    following.decline(node)
                fields = {"node": node, "client": str(node), "why": content}
                say(attempt, "next", "client %(client)s is not in the next one: %(why)s", fields)
        for node in gathered.declined:
            if node in place_of:
                opening.decline(place_of[node])
            if following:
                following.decline(node)
        opening.advance()
        self._say_dropped(opening.dropped, before, attempt)
        if following and following.requests:
            after = attempt._replace(round=attempt.round + 1)
            _advance(following, after)
            self._say_dropped(following.dropped, known, after)
        if opening.stage == SURVIVORS and len(opening.survivors) < self.policy.minimum:
            raise Abandoned(
                f"{len(opening.survivors)} reports came, and {self.policy.minimum} are needed"
            )


def _advance(following: Coming, attempt: Attempt) -> None:
    """What is prepared ahead is a help, and no reason to give the round up."""
    try:
        following.advance()
    except Refused as error:
        LOG.info("round %d is not prepared ahead: %s", attempt.round, error)


def _bytes(content: RecordDict) -> bytes:
    return content.config_records[SECURE][REQUEST]  # type: ignore[return-value]


def _no_answer(content: RecordDict) -> str | None:
    answer = content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
    return None if isinstance(answer, bytes) else "its answer is not in bytes"
