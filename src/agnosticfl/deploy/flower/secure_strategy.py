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

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.deploy import wire
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    RoundPolicy,
    enough_vectors,
    gather,
    request,
    select,
    stamp,
)
from agnosticfl.deploy.flower.records import ARRAYS, PLACE, REQUEST, ROUND, SECURE, to_record
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.errors import check
from agnosticfl.files import write_bytes
from agnosticfl.runs.config import Config
from agnosticfl.secagg.aggregator import Server
from agnosticfl.secagg.agreement import Agreement, check_agreement, in_words, roster_digest
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.primitives import KEY, digest

JOIN = f"{MessageType.QUERY}.join"
STEP = f"{MessageType.QUERY}.secure"
VECTORS = "masked vectors"  # the step of `Server` in which clients do their work
SURVIVORS = "survivors"  # and the one after it


class SecureStrategy(AgnosticStrategy):
    """`AgnosticStrategy` whose sums are secure.

    Args:
      agreement: of the federation, as its clients know them.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        policy: RoundPolicy,
        data: Splits,
        agreement: Agreement,
        model: Model | None = None,
    ):
        super().__init__(config, folder, policy, data, model)
        self.agreement = check_agreement(agreement)
        self._last = 0  # number of the last secure round
        # Beside the run folder: if this process dies now, clients will not open this sum again.
        self._kept = folder.with_name(f"{folder.name}.sum")

    def summary(self) -> None:
        super().summary()
        agreement = self.agreement
        LOG.info(in_words(self.policy.clients, agreement.dishonest, agreement.dropout))

    def attempt(self, grid: Grid, sent: Broadcast, attempt: Attempt) -> Any:
        """Σ_k over the clients that stay to the end, or `Abandoned`."""
        sizes = wire.sizes(self.message)
        check(set(sizes) == {"int32"}, f"a secure sum is one of int32, and not of {sizes}")
        bits = self.channel.bits
        short = 0 if bits is None else jax.tree.leaves(self.message)[0].size
        arrays = tree.named(sent)
        total = self._kept_sum(attempt.round, wire.digest(arrays))
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
        sent = wire.digest(arrays)
        # Never used twice, not even by a server that lost its memory.
        self._last = max(self._last + 1, time.time_ns() // 10**6)
        server = Server(
            self.agreement, self._last, list(nodes), length, short, bits, sent, attempt.round
        )
        try:
            while server.requests:
                self._step(grid, server, nodes, arrays, attempt)
        except (Refused, Abandoned) as error:
            self._end(grid, server, nodes, attempt)
            if not server.unmasked:
                raise Abandoned(str(error)) from None
            LOG.warning("round %d is given up, the model stays: %s", attempt.round, error)
        else:
            LOG.info("round %d: secure sum of %d clients", attempt.round, len(server.survivors))
        total = self._usable(told, server, attempt)
        total = np.zeros(length, "<u4") if total is None else total
        write_bytes(self._kept, self._name(attempt.round, sent) + total.tobytes())
        return total

    def _usable(self, told: Broadcast, server: Server, attempt: Attempt) -> np.ndarray | None:
        """The open sum, unless it is one that cannot be; no client would open another one."""
        if server.total is None:
            return None
        total = wire.unpack({"int32": server.total.view(np.int32)}, self.message)
        why = self.implausible(told, total, len(server.survivors))
        if why is None:
            return server.total
        LOG.warning(
            "round %d is given up, the model stays: the sum cannot be right: %s", attempt.round, why
        )
        return None

    def _kept_sum(self, t: int, sent: bytes) -> np.ndarray | None:
        """The sum of round t, if it was opened before this process began."""
        content = self._kept.read_bytes() if self._kept.exists() else b""
        name = self._name(t, sent)
        return np.frombuffer(content[KEY:], "<u4") if content[:KEY] == name else None

    def _name(self, t: int, sent: bytes) -> bytes:
        """Of a sum: another federation, as another roster shows, opens its own."""
        roster = roster_digest(self.agreement)
        return digest(b"sum", self.agreement.run, roster, t.to_bytes(8, "big"), sent)

    def _end(self, grid: Grid, server: Server, nodes: dict[int, int], attempt: Attempt) -> None:
        """Tells the clients of a round that is abandoned to forget its secrets."""
        content = RecordDict({ROUND: stamp(attempt), SECURE: ConfigRecord({REQUEST: server.over})})
        messages = [request(node, STEP, content, self.policy.step) for node in nodes.values()]
        gather(grid, messages, attempt, seconds=self.policy.step)

    def _joined(self, grid: Grid, attempt: Attempt) -> dict[int, int]:
        """Place in the roster -> node, of those who want to take part."""
        chosen = select(grid, self.policy, self.config.seed, attempt)
        content = RecordDict({ROUND: stamp(attempt)})
        messages = [request(node, JOIN, content, self.policy.step) for node in chosen]
        gathered = gather(grid, messages, attempt, seconds=self.policy.step, refusal=self._stranger)
        nodes: dict[int, int] = {}
        for reply in gathered.replies:
            place, node = _place(reply), reply.metadata.src_node_id
            if nodes.setdefault(place, node) != node:
                LOG.warning("node %d says that it is client %d, as another does", node, place)
        needed = max(self.policy.minimum, self.agreement.fewest)
        if len(nodes) < needed:
            raise Abandoned(f"{len(nodes)} clients join, and {needed} are needed")
        return nodes

    def _stranger(self, content: RecordDict) -> str | None:
        record = content.config_records.get(SECURE, ConfigRecord())
        place = record.get(PLACE)
        known = type(place) is int and 0 <= place < len(self.agreement.roster)
        return None if known else "it says no place in the roster"

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
            answer: Any = reply.content.config_records[SECURE][REQUEST]
            server.receive(place_of[reply.metadata.src_node_id], answer)
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


def _place(reply: Message) -> int:
    return int(reply.content.config_records[SECURE][PLACE])  # type: ignore[arg-type]


def _no_answer(content: RecordDict) -> str | None:
    answer = content.config_records.get(SECURE, ConfigRecord()).get(REQUEST)
    return None if isinstance(answer, bytes) else "its answer is not in bytes"
