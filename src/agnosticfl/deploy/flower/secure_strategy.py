# SPDX-License-Identifier: Apache-2.0
"""The same strategy under secure aggregation: the server learns the sum and nothing else.

    query.join     who takes part, and by which registered key
    query.secure   keys; shares; survivors; unmasking
    train          the masked vector, with the work of the round before it

Who is lost in any of these steps is left out of the sum, or taken out of it, as long as enough are
left; if not, the attempt is abandoned and the round tried again, with new keys. A client helps to
open one sum of a round only, so a sum is kept as soon as it is open, and a round that is lost while
it is being opened is given up: the model stays as it was.
"""

import functools
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.deploy import blame, wire
from agnosticfl.deploy.agree import of_kind
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    RoundPolicy,
    enough_vectors,
    gather,
    num_asked,
    request,
    select,
    stamp,
)
from agnosticfl.deploy.flower.records import ARRAYS, REQUEST, ROUND, SECURE, to_record
from agnosticfl.deploy.flower.strategy import AgnosticStrategy, Way
from agnosticfl.deploy.task import EVALUATION, most_clients
from agnosticfl.errors import check
from agnosticfl.files import write_bytes
from agnosticfl.runs.config import Config
from agnosticfl.secagg.aggregator import Server, joined, question
from agnosticfl.secagg.agreement import (
    Agreement,
    check_agreement,
    in_words,
    num_holders,
    reckoned_dishonest,
)
from agnosticfl.secagg.messages import Join, Refused, pack
from agnosticfl.secagg.primitives import KEY, Ed25519PrivateKey, digest, verify_key

JOIN = f"{MessageType.QUERY}.join"
STEP = f"{MessageType.QUERY}.secure"
VECTORS = "masked vectors"  # the step of `Server` in which clients do their work
SURVIVORS = "survivors"  # and the one after it


class SecureStrategy(AgnosticStrategy):
    """`AgnosticStrategy` whose sums are secure.

    Args:
      agreement: of the federation, as its clients know it.
      key: of the server, whose public half is in the app.
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
    ):
        super().__init__(config, folder, policy, data, model)
        self.agreement, self.key = check_agreement(agreement), key
        check(verify_key(key) == agreement.server, "the server's signing key is not the app's")
        asked, room = num_asked(policy), most_clients(config)
        check(
            asked <= room,
            f"over-selection {policy.over_selection} asks {asked} clients, and the numbers of a sum"
            f" have room for {room}; make the app with --set secure.most_clients={asked}",
        )
        self._last = 0  # number of the last secure round
        self._cheats = blame.Blame()  # for the whole run
        self._losses = blame.Blame()  # since the last sum
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
        return other

    def learn_from(self, other: Self) -> None:
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
        nodes = self._joined(grid, attempt)
        sent = wire.digest(attempt.round, arrays)
        # Never used twice, not even by a server that lost its memory.
        self._last = max(self._last + 1, time.time_ns() // 10**6)
        server = Server(
            self.agreement,
            self.key,
            self._last,
            list(nodes),
            length,
            short,
            bits,
            sent,
            attempt.round,
        )
        try:
            while server.requests:
                self._step(grid, server, nodes, arrays, attempt)
            self._check_total(told, server)
        except (Refused, Abandoned) as error:
            self._end(grid, server, nodes, attempt)
            self._learn(server, nodes, attempt, well=False)
            if not server.unmasked:
                raise Abandoned(str(error)) from None
            # The sum was open, or nearly: no client would open another one of this round.
            LOG.warning("round %d is given up, the model stays: %s", attempt.round, error)
            total = np.zeros(length, "<u4")
        else:
            self._learn(server, nodes, attempt, well=True)
            LOG.info("round %d: secure sum of %d clients", attempt.round, len(server.survivors))
            total: np.ndarray = server.total  # type: ignore[assignment]
        write_bytes(self._kept, self._name(attempt.round, sent) + total.tobytes())
        return total

    def _check_total(self, told: Broadcast, server: Server) -> None:
        """Refuses a sum that so many clients with these domains cannot have."""
        total = wire.unpack({"int32": server.total.view(np.int32)}, self.message)  # type: ignore[union-attr]
        alive = server.survivors
        held = [num_holders(self.agreement, name, alive) for name in self.data.train.domains]
        why = self.implausible(told, total, len(alive), held)
        if why is not None:
            raise Refused(f"the sum cannot be right: {why}")

    def _learn(self, server: Server, nodes: Collection[int], attempt: Attempt, well: bool) -> None:
        """Remembers what a round says of its clients, whether it ended well or failed.

        Cheating counts for the whole run. A client that is only lost is left out of the next
        attempt, and is welcome again after the next sum.
        """
        known = self._cheats
        for place, why in server.cheated.items():
            known = blame.shown(known, place, why)
        pairs, liars = server.contradictions, reckoned_dishonest(self.agreement, len(nodes))
        if well:
            known = blame.succeeded(blame.contradicted(known, pairs, liars), server.survivors)
            self._losses = blame.Blame()
        elif pairs:
            known = blame.failed(known, nodes, pairs, liars)
        elif server.total is not None:  # somebody's numbers were wrong, and nobody can see whose
            known = blame.failed(known, server.survivors)
        elif server.doubtful:
            known = blame.failed(known, server.doubtful)
        elif not server.cheated:
            self._losses = blame.failed(self._losses, server.dropped or nodes)
        for place in sorted(known.named.keys() - self._cheats.named.keys()):
            why = known.named[place]
            LOG.warning(
                "round %d: client %d is left out from now on: %s", attempt.round, place, why
            )
        self._cheats = known

    def _kept_sum(self, t: int, sent: bytes) -> np.ndarray | None:
        """The sum of round t, if it was opened before this process began."""
        content = self._kept.read_bytes() if self._kept.exists() else b""
        name = self._name(t, sent)
        return np.frombuffer(content[KEY:], "<u4") if content[:KEY] == name else None

    def _name(self, t: int, sent: bytes) -> bytes:
        return digest(b"sum", self.agreement.run, t.to_bytes(8, "big"), sent)

    def _end(self, grid: Grid, server: Server, nodes: dict[int, int], attempt: Attempt) -> None:
        """Tells the clients of a round that is abandoned to forget its secrets."""
        content = RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: server.over})})
        messages = [request(node, STEP, content, self.policy.step) for node in nodes.values()]
        gather(grid, messages, attempt, seconds=self.policy.step)

    def _joined(self, grid: Grid, attempt: Attempt) -> dict[int, int]:
        """Place in the roster -> node, of those who want to take part."""
        known = {node for node, place in self._places.items() if place in self._cheats.named}
        chosen = select(grid, self.policy, self.config.seed, attempt, known)
        asked = question(self.agreement, self.key, bytes.fromhex(attempt.token))
        content = RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: pack(asked)})})
        messages = [request(node, JOIN, content, self.policy.step) for node in chosen]
        nodes: dict[int, int] = {}
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=self.policy.step,
            refusal=functools.partial(self._stranger, asked),
        )
        for reply in gathered.replies:
            node = reply.metadata.src_node_id
            place = joined(self.agreement, asked, _bytes(reply.content))
            if nodes.setdefault(place, node) != node:
                LOG.warning("node %d says that it is client %d, as another does", node, place)
        needed = max(self.policy.minimum, self.agreement.fewest)
        self._places |= {node: place for place, node in nodes.items()}
        for known in (self._cheats, self._losses):
            seed = (self.config.seed, attempt.round, attempt.number)
            choice = blame.left_out(known, nodes, needed, seed)
            if choice.why:
                LOG.warning("round %d: %s", attempt.round, choice.why)
            nodes = {place: node for place, node in nodes.items() if place not in choice.out}
        if len(nodes) < needed:
            raise Abandoned(f"{len(nodes)} clients join, and {needed} are needed")
        return nodes

    def _stranger(self, asked: Join, content: RecordDict) -> str | None:
        try:
            if (no_answer := _no_answer(content)) is None:
                joined(self.agreement, asked, _bytes(content))
        except Refused as error:
            return str(error)
        return no_answer

    def _step(
        self,
        grid: Grid,
        server: Server,
        nodes: dict[int, int],
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
    ) -> None:
        """One exchange of the protocol."""
        work = server.stage == VECTORS
        seconds = self.policy.deadline if work else self.policy.step
        common = RecordDict({ROUND: stamp(attempt)})
        if work:
            common[ARRAYS] = to_record(arrays)
        messages = [
            request(
                nodes[place],
                MessageType.TRAIN if work else STEP,
                RecordDict({**common, SECURE: ConfigRecord({REQUEST: content})}),
                seconds,
            )
            for place, content in server.requests.items()
        ]
        gathered = gather(
            grid,
            messages,
            attempt,
            seconds=seconds,
            enough=enough_vectors(self.policy, len(nodes), self.agreement.dropout)
            if work
            else None,
            refusal=_no_answer,
        )
        place_of = {node: place for place, node in nodes.items()}
        dropped = set(server.dropped)
        for reply in gathered.replies:
            server.receive(place_of[reply.metadata.src_node_id], _bytes(reply.content))
        stage = server.stage
        server.advance()
        for place in sorted(set(server.dropped) - dropped):
            why = server.dropped[place]
            LOG.warning("round %d: client %d is dropped: %s", attempt.round, place, why)
        LOG.info(
            "round %d: %s: %d of %d", attempt.round, stage, len(gathered.replies), len(messages)
        )
        if server.stage == SURVIVORS and len(server.survivors) < self.policy.minimum:
            raise Abandoned(
                f"{len(server.survivors)} reports came, and {self.policy.minimum} are needed"
            )


def _bytes(content: RecordDict) -> bytes:
    return content.config_records[SECURE][REQUEST]  # type: ignore[return-value]


def _no_answer(content: RecordDict) -> str | None:
    answer = content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
    return None if isinstance(answer, bytes) else "its answer is not in bytes"
