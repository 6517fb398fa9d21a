# SPDX-License-Identifier: Apache-2.0
"""The same strategy under secure aggregation: the server learns the sum and nothing else.

    query.join     who takes part, and by which registered key
    query.secure   keys; shares; survivors; unmasking
    train          the masked vector, with the work of the round before it

The first three of these six exchanges prepare a round. While the sum of a round is opened, the next
one is prepared with the same messages (`coming`), so that three exchanges are left of it; where
that fails, or a round did, the next one begins with all six.

Who is lost in any of these steps is left out of the sum, or taken out of it, as long as enough are
left; if not, the attempt is abandoned and the round tried again, with new keys. A client helps to
open one sum of a round only, so a sum is kept as soon as it is open, and a round that is lost while
it is being opened is given up: the model stays as it was.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from agnosticfl.deploy import blame, wire
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
from agnosticfl.deploy.flower.records import AHEAD, ARRAYS, REQUEST, ROUND, SECURE, to_record
from agnosticfl.deploy.flower.strategy import AgnosticStrategy, Way
from agnosticfl.deploy.flower.willing import Looking
from agnosticfl.deploy.task import EVALUATION, TRAINING, most_clients
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_bytes
from agnosticfl.runs.config import Config
from agnosticfl.secagg.agreement import (
    Agreement,
    check_agreement,
    in_words,
    num_with_domain,
    reckoned_dishonest,
)
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.primitives import KEY, Ed25519PrivateKey, digest, verify_key

VECTORS = "masked vectors"  # the stage of `Opening` in which clients do their work
SURVIVORS = "survivors"  # and the one after it


class SecureStrategy(AgnosticStrategy):
    """`AgnosticStrategy` whose sums are secure.

    Args:
      agreement: of the federation, as its clients know it.
      key: of the server, whose public half is in the app.
      members: names of the clients in the order of the roster, for the log.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        policy: RoundPolicy,
        data: Splits,
        agreement: Agreement,
        key: Ed25519PrivateKey,
        model: Model | None = None,
        members: Sequence[str] = (),
    ):
        super().__init__(config, folder, policy, data, model)
        self.members = tuple(members) or tuple(map(str, range(len(agreement.roster))))
        self.agreement, self.key = check_agreement(agreement), key
        # Beside the run folder, a line for each sum that vectors were asked for.
        self._asked = folder.with_name(f"{folder.name}.asked")
        self._run = agreement.run.decode(errors="replace")
        check(verify_key(key) == agreement.server, "the server's signing key is not the app's")
        asked, room = num_asked(policy), most_clients(config)
        check(
            asked <= room,
            f"over-selection {policy.over_selection} asks {asked} clients, and the numbers of a sum"
            f" have room for {room}; make the app with --set secure.most_clients={asked}",
        )
        # Agreement and members as they are now.
        self.follow: Callable[[], tuple[Agreement, Sequence[str]]] = lambda: (
            self.agreement,
            self.members,
        )
        self._asks_for: tuple[SecureStrategy, str] | None = None  # whose sums of another kind
        self._last = 0  # number of the last secure round
        self._cheats = blame.Blame()  # for the whole run
        self._losses = blame.Blame()  # since the last sum
        self._next: Coming | None = None  # the next round, if it was prepared
        self._places: dict[int, int] = {}  # node -> place in the roster, of all that ever joined
        # Beside the run folder: if this process dies now, clients will not open this sum again.
        self._kept = folder.with_name(f"{folder.name}.sum")

    def summary(self) -> None:
        super().summary()
        agreement = self.agreement
        LOG.info(in_words(self.policy.clients, agreement.dishonest, agreement.dropout))

    def asking(self, kind: str, number: int, way: Way) -> Self:
        other = super().asking(kind, number, way)
        other.agreement = of_kind(self.agreement, self.config, kind)
        place = self.folder.with_name(f"{self.folder.name}.sums")
        place.mkdir(exist_ok=True)
        # Reports are of one round after the other; what a model was judged by is asked for again.
        other._kept = place / (f"{kind}-{number}" if kind == EVALUATION else kind)
        other._next, other._asks_for = None, (self, kind)
        return other

    def num_asked(self) -> int:
        lines = self._asked.read_text("utf-8").splitlines() if self._asked.exists() else []
        return sum(line.rpartition(" ")[0] == self._run for line in lines)

    def _note_asked(self, attempt: Attempt) -> None:
        if self.privacy is not None:
            with self._asked.open("a", encoding="utf-8") as file:
                file.write(f"{self._run} {attempt.kind}-{attempt.round}-{attempt.number}\n")

    def learn_from(self, other: Any) -> None:
        self._last, self._cheats, self._losses = other._last, other._cheats, other._losses

    def attempt(self, grid: Grid, sent: Broadcast, attempt: Attempt) -> Any:
        """Σ_k over the clients that stay to the end, or `Abandoned`."""
        sizes = wire.sizes(self.message)
        check(set(sizes) == {"int32"}, f"a secure sum is one of int32, and not of {sizes}")
        bits = self.channel.bits
        short = 0 if bits is None else jax.tree.leaves(self.message)[0].size
        arrays = tree.named(sent)
        total = self._kept_sum(attempt.round, wire.digest(attempt.round, arrays))
        if total is None:
            total = self._open(grid, sent, arrays, attempt, sizes["int32"], short, bits or 32)
        return wire.unpack({"int32": total.view(np.int32)}, self.message)

    def _open(
        self,
        grid: Grid,
        told: Broadcast,
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
        length: int,
        short: int,
        bits: int,
    ) -> np.ndarray:
        """The sum of one secure round."""
        self._follow(grid, attempt)
        coming = self._prepared(grid, attempt)
        sent = wire.digest(attempt.round, arrays)
        opening = Opening(coming.prepared, attempt.round, length, short, bits, sent)  # type: ignore[arg-type]
        following = self._following(grid, attempt)
        self._note_asked(attempt)
        try:
            while opening.requests:
                self._step(grid, opening, coming.nodes, following, arrays, attempt)
            self._check_total(told, opening)
        except (Refused, Abandoned) as error:
            self._end(grid, coming, attempt)
            self._end(grid, following, attempt)
            self._learn(coming, opening, attempt)
            if not opening.unmasked:
                raise Abandoned(str(error)) from None
            # The sum was open, or nearly: no client would open another one of this round.
            LOG.warning("round %d is given up, the model stays: %s", attempt.round, error)
            total = np.zeros(length, "<u4")
        else:
            self._learn(coming, opening, attempt, well=True)
            LOG.info("round %d: secure sum of %d clients", attempt.round, len(opening.survivors))
            total: np.ndarray = opening.total  # type: ignore[assignment]
            self._next = following
        write_bytes(self._kept, self._name(attempt.round, sent) + total.tobytes())
        return total

    def _follow(self, grid: Grid, attempt: Attempt) -> None:
        """Goes on with another roster, if there is one: members came, went or have new keys.

        Who cheated stays left out, wherever it stands now.
        """
        if self._asks_for is not None:
            self._follow_with(*self._asks_for, grid, attempt)
            return
        old = self.agreement
        try:
            new, members = self.follow()
            check_agreement(new)
        except BadInput as error:
            LOG.warning("round %d: the roster stays as it was: %s", attempt.round, error)
            return
        if new is old or new == old:
            return
        ahead, self._next = self._next, None
        self._end(grid, ahead, attempt)
        self.agreement, self._places, self._losses = new, {}, blame.Blame()
        self.members = tuple(members)
        keys = {key: place for place, key in enumerate(new.roster)}
        named = self._cheats.named.items()
        stay = {keys[old.roster[at]]: why for at, why in named if old.roster[at] in keys}
        self._cheats = blame.Blame(named=stay)
        LOG.info(
            "round %d: from now on with the roster %s", attempt.round, new.terms.get("roster", "")
        )

    def _follow_with(
        self, whole: "SecureStrategy", kind: str, grid: Grid, attempt: Attempt
    ) -> None:
        """The same for a kind of sums: with the strategy that asks for them; they share blame."""
        whole.learn_from(self)
        whole._follow(grid, attempt._replace(kind=TRAINING))
        self.agreement = of_kind(whole.agreement, self.config, kind)
        self.members, self._places = whole.members, whole._places
        self._cheats, self._losses = whole._cheats, whole._losses

    def _prepared(self, grid: Grid, attempt: Attempt) -> Coming:
        """A round that is ready for its sum: one that was prepared ahead, or another."""
        ahead, self._next = self._next, None
        if ahead is not None:
            self._note_cheats(ahead.cheated, attempt)
        if ahead is not None and ahead.prepared and not ahead.nodes.keys() & self._cheats.named:
            return ahead
        self._end(grid, ahead, attempt)
        coming = self._joined(grid, attempt)
        try:
            while coming.requests:
                self._ask(grid, coming, attempt)
        except (Refused, Abandoned) as error:
            self._end(grid, coming, attempt)
            self._learn(coming, None, attempt)
            raise Abandoned(str(error)) from None
        self._note_cheats(coming.cheated, attempt)
        return coming

    def _joined(self, grid: Grid, attempt: Attempt) -> Coming:
        """A round that enough clients have joined. Until then nobody has lost anything."""
        known = {node for node, place in self._places.items() if place in self._cheats.named}
        looking = Looking(self.policy, attempt)
        while True:
            asked = select(grid, self.policy, self.config.seed, attempt, known, looking.unwilling)
            coming = self._coming(asked, attempt)
            try:
                self._ask(grid, coming, attempt)
                return coming
            except Refused as error:
                connected = set(grid.get_node_ids()) - known
                if not looking.again(asked, coming.joined, connected, str(error)):
                    raise Abandoned(str(error)) from None

    def _following(self, grid: Grid, attempt: Attempt) -> Coming | None:
        """The round after this one, to be prepared beside it."""
        searching = self._cheats.failing or self._losses.failing
        if attempt.kind != TRAINING or attempt.round >= self.agreement.rounds or searching:
            return None
        after = Attempt(attempt.round + 1, 1, attempt.token)
        known = {node for node, place in self._places.items() if place in self._cheats.named}
        try:
            asked = select(grid, self.policy._replace(wait=0), self.config.seed, after, known)
        except Abandoned:
            return None
        return self._coming(asked, after)

    def _coming(self, asked: Collection[int], attempt: Attempt) -> Coming:
        # A number is never used twice, not even by a server that lost its memory.
        self._last = max(self._last + 1, time.time_ns() // 10**6)

        def admit(nodes: dict[int, int]) -> dict[int, int]:
            return self._admitted(nodes, attempt)

        return Coming(self.agreement, self.key, self._last, asked, admit)

    def _admitted(self, nodes: dict[int, int], attempt: Attempt) -> dict[int, int]:
        """Of those who join, all but who is left out for what happened before."""
        needed = max(self.policy.minimum, self.agreement.fewest)
        self._places |= {node: place for place, node in nodes.items()}
        for known in (self._cheats, self._losses):
            seed = (self.config.seed, attempt.round, attempt.number)
            choice = blame.left_out(known, nodes, needed, seed, self.members)
            if choice.why:
                LOG.warning("round %d: %s", attempt.round, choice.why)
            nodes = {place: node for place, node in nodes.items() if place not in choice.out}
        if len(nodes) < needed:
            raise Refused(f"{len(nodes)} clients join, and {needed} are needed")
        return nodes

    def _check_total(self, told: Broadcast, opening: Opening) -> None:
        """Refuses a sum that so many clients with these domains cannot have."""
        total = wire.unpack({"int32": opening.total.view(np.int32)}, self.message)  # type: ignore[union-attr]
        alive = opening.survivors
        held = [num_with_domain(self.agreement, name, alive) for name in self.data.train.domains]
        why = self.implausible(told, total, len(alive), held)
        if why is not None:
            raise Refused(f"the sum cannot be right: {why}")

    def _learn(
        self, coming: Coming, opening: Opening | None, attempt: Attempt, well: bool = False
    ) -> None:
        """Remembers what a round says of its clients, whether it ended well or failed.

        Cheating counts for the whole run. A client that is only lost is left out of the next
        attempt, and is welcome again after the next sum.
        """
        cheated = {**coming.cheated, **(opening.cheated if opening else {})}
        self._note_cheats(cheated, attempt)
        known, nodes = self._cheats, coming.nodes
        pairs = opening.contradictions if opening else set[blame.Pair]()
        liars = reckoned_dishonest(self.agreement, len(nodes))
        if opening and well:
            known = blame.succeeded(blame.contradicted(known, pairs, liars), opening.survivors)
            self._losses = blame.Blame()
        elif pairs:
            known = blame.failed(known, nodes, pairs, liars)
        elif opening and opening.total is not None:
            # Somebody's numbers were wrong, and nobody can see whose.
            known = blame.failed(known, opening.survivors)
        elif opening and opening.doubtful:
            known = blame.failed(known, opening.doubtful)
        elif not cheated:
            dropped = {**coming.dropped, **(opening.dropped if opening else {})}
            self._losses = blame.failed(self._losses, dropped or nodes)
        self._name_cheats(known, attempt)

    def _note_cheats(self, cheated: Mapping[int, str], attempt: Attempt) -> None:
        known = self._cheats
        for place, why in cheated.items():
            known = blame.shown(known, place, why)
        self._name_cheats(known, attempt)

    def _name_cheats(self, known: blame.Blame, attempt: Attempt) -> None:
        """Takes over what is known now, and says who is new among those who are left out."""
        for place in sorted(known.named.keys() - self._cheats.named.keys()):
            why = known.named[place]
            fields = {"client": self.members[place], "why": f"is left out from now on: {why}"}
            say(attempt, "lost", "client %(client)s %(why)s", fields, logging.WARNING)
        self._cheats = known

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
        gather(grid, messages, attempt, seconds=self.policy.step)

    def _ask(self, grid: Grid, coming: Coming, attempt: Attempt) -> None:
        """One exchange of a round that is being prepared, on its own."""
        messages = self._messages(coming, coming.requests, attempt)
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=self.policy.step,
            stage=coming.stage,
            refusal=_no_answer,
        )
        before = set(coming.dropped)
        for reply in gathered.replies:
            coming.receive(reply.metadata.src_node_id, _bytes(reply.content))
        coming.advance()
        self._say_dropped(coming.dropped, before, attempt)

    def _say_dropped(
        self, dropped: Mapping[int, str], before: Collection[int], attempt: Attempt
    ) -> None:
        for place in sorted(set(dropped) - set(before)):
            fields = {"client": self.members[place], "why": f"is dropped: {dropped[place]}"}
            say(attempt, "lost", "client %(client)s %(why)s", fields, logging.WARNING)

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
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=seconds,
            stage=opening.stage,
            enough=room if work else None,
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
            elif isinstance(content, str):
                fields = {"node": node, "client": str(node), "why": content}
                say(attempt, "next", "client %(client)s is not in the next one: %(why)s", fields)
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
