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

from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from flwr.serverapp import Grid

from agnosticfl.core import tree
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.deploy import wire
from agnosticfl.deploy.agree import of_kind
from agnosticfl.deploy.flower.coming import Coming
from agnosticfl.deploy.flower.exchange import Exchange
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    RoundPolicy,
    num_asked,
    select,
)
from agnosticfl.deploy.flower.standing import Standing, who_left
from agnosticfl.deploy.flower.strategy import AgnosticStrategy, Way
from agnosticfl.deploy.flower.sums import AskedSums, KeptSum
from agnosticfl.deploy.flower.willing import Looking
from agnosticfl.deploy.task import EVALUATION, TRAINING
from agnosticfl.errors import check
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.secagg.agreement import Agreement, in_words, num_with_domain
from agnosticfl.secagg.messages import Refused
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.primitives import Ed25519PrivateKey, verify_key


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
        # Both beside the run folder.
        self._asked = AskedSums(folder.with_name(f"{folder.name}.asked"), standing.agreement.run)
        self._kept = KeptSum(folder.with_name(f"{folder.name}.sum"), standing.agreement.run)

    @property
    def agreement(self) -> Agreement:
        """For sums of this kind, with the roster of now."""
        return of_kind(self.standing.agreement, self.config, self.kind)

    def summary(self) -> None:
        super().summary()
        agreement = self.agreement
        LOG.info(in_words(self.policy.clients, agreement.dishonest, agreement.dropout))

    def for_kind(self, kind: str, number: int, way: Way) -> Self:
        other = super().for_kind(kind, number, way)
        place = self.folder.with_name(f"{self.folder.name}.sums")
        place.mkdir(exist_ok=True)
        # Reports are of one round after the other; what a model was judged by is asked for again.
        name = f"{kind}-{number}" if kind == EVALUATION else kind
        other.kind, other._next = kind, None
        other._kept = KeptSum(place / name, other.agreement.run)
        return other

    def sums_asked(self) -> int:
        return self._asked.num_noted()

    def attempt(self, grid: Grid, sent: Broadcast, attempt: Attempt) -> Any:
        """Σ_k over the clients that stay to the end, or `Abandoned`."""
        sizes = wire.sizes(self.message)
        check(set(sizes) == {"int32"}, f"a secure sum is one of int32, and not of {sizes}")
        bits = self.channel.bits
        short = 0 if bits is None else jax.tree.leaves(self.message)[0].size
        arrays = tree.named(sent)
        total = self._kept.read(attempt.round, wire.digest(attempt.round, arrays))
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
        exchange = Exchange(grid, self.policy, self.agreement, self.standing)
        looking = Looking(self.policy, attempt)
        total = None
        while total is None:
            coming = self._prepare(exchange, attempt, looking)
            self._took |= dict.fromkeys(coming.nodes.values(), attempt.round)
            opening = Opening(coming.prepared, attempt.round, length, short, bits, sent)  # type: ignore[arg-type]
            total = self._open_prepared(exchange, told, arrays, attempt, looking, coming, opening)
        if not self._apart:  # a sum that has no noise yet is nowhere but in memory
            self._kept.write(attempt.round, sent, total)
        return total

    def _open_prepared(
        self,
        exchange: Exchange,
        told: Broadcast,
        arrays: dict[str, np.ndarray],
        attempt: Attempt,
        looking: Looking,
        coming: Coming,
        opening: Opening,
    ) -> np.ndarray | None:
        """Opens the sum of a round that is prepared; None if it has to be prepared anew."""
        following = self._plan_following(exchange.grid, attempt)
        if self.privacy is not None:
            self._asked.note(attempt)
        try:
            while opening.requests:
                exchange.open(opening, coming.nodes, following, arrays, attempt)
            self._check_total(told, opening)
        except (Refused, Abandoned) as error:
            exchange.end(coming, attempt)
            exchange.end(following, attempt)
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

    def _prepare(self, exchange: Exchange, attempt: Attempt, looking: Looking) -> Coming:
        """Makes a round ready for its sum: the one that was prepared ahead, or another."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead.agreement == self.agreement:
            self.standing.note(ahead.cheated, attempt)
            if ahead.prepared and not ahead.nodes.keys() & self.standing.cheats.named:
                return ahead
        exchange.end(ahead, attempt)
        while True:
            coming = self._invite(exchange, attempt, looking)
            try:
                while coming.requests:
                    exchange.prepare(coming, attempt)
            except (Refused, Abandoned) as error:
                exchange.end(coming, attempt)
                if looking.excuse(who_left(coming), str(error)):
                    continue
                self.standing.learn(coming, None, attempt)
                raise Abandoned(str(error)) from None
            self.standing.note(coming.cheated, attempt)
            return coming

    def _invite(self, exchange: Exchange, attempt: Attempt, looking: Looking) -> Coming:
        """Asks until enough clients have joined a round. Until then nobody has lost anything."""
        known = self.standing.left_out | self._resting(attempt.round)
        while True:
            asked = select(
                exchange.grid, self.policy, self.config.seed, attempt, known, looking.unwilling
            )
            coming = self._coming(asked, attempt)
            try:
                exchange.prepare(coming, attempt)
                return coming
            except Refused as error:
                connected = set(exchange.grid.get_node_ids()) - known
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
