# SPDX-License-Identifier: Apache-2.0
"""Agnostic Federated Averaging as a Flower strategy.

Its heart is `agnostic_round` of the core, with the federation as its `SumOverClients`: the
algorithm cannot tell real machines from a simulation, and gets nothing of a client but its part in
a sum.
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from agnosticfl.channels.plausible import why_implausible
from agnosticfl.core import tree
from agnosticfl.core.channel import Adders, message_shapes
from agnosticfl.core.contribution import Broadcast, ClientSum, Total, contribution_shapes
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model, Params
from agnosticfl.core.state import RoundInfo, ServerState
from agnosticfl.deploy import wire
from agnosticfl.deploy.flower.evaluations import Ask, Way, federated_judge, federated_reports
from agnosticfl.deploy.flower.federation import (
    LOG,
    Abandoned,
    Attempt,
    Gathered,
    RoundPolicy,
    attempt_of,
    check_policy,
    gather,
    play_until_done,
    request,
    select,
    stamp,
)
from agnosticfl.deploy.flower.records import ARRAYS, ROUND, SUM, to_arrays, to_record
from agnosticfl.deploy.flower.willing import Looking, gather_willing, still_needed
from agnosticfl.deploy.private import privacy_of
from agnosticfl.deploy.served import terms_record
from agnosticfl.deploy.task import EVALUATION, REPORT
from agnosticfl.engines.base import Engine, as_it_is
from agnosticfl.errors import check
from agnosticfl.registry import MODELS
from agnosticfl.runs.build import Built, assemble
from agnosticfl.runs.build_channel import build_channel
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import Record
from agnosticfl.runs.run import run


class AgnosticStrategy(Strategy):
    """Plays the rounds of one run over a federation.

    Args:
      config: as in a run folder; `clients_per_round` (c) is the number of reports wanted.
      folder: the run folder. A run that is there is gone on with.
      policy: how a round goes over real machines.
      data: what the server holds itself: the domains, and examples to test on.
      model: in place of the one that `config` names.
      terms: what must be the same on the clients, by name; they take no part otherwise.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        policy: RoundPolicy,
        data: Splits,
        model: Model | None = None,
        terms: Mapping[str, str] | None = None,
    ):
        self.config, self.folder, self.policy = config, folder, check_policy(policy)
        self.terms = dict(terms or {})
        self.data, self.model = data, model or MODELS.build(config.model, "model")
        sums = contribution_shapes(self.model, data.train.num_domains)
        self.privacy = (
            None if config.dp is None else privacy_of(config, sums, self.sums_asked, server=True)
        )
        self.channel = build_channel(config, self.privacy)(sums)
        self.message = message_shapes(self.channel, sums)  # the shapes of what a client sends
        self.total = jax.eval_shape(self.channel.summand, self.message)  # and of their sum

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Plays the run to its end.

        Args:
          initial_arrays: w_0, if the run folder has no later w.
          num_rounds: T.
          timeout: seconds that clients have for a round's work.
          train_config, evaluate_config, evaluate_fn: not for this strategy. Clients train as
            `config` says, nothing but sums leaves them, and the server evaluates as `config` says.
        """
        given = (train_config, evaluate_config, evaluate_fn)
        check(given == (None, None, None), "this strategy takes what to do from its config alone")
        self.policy = check_policy(self.policy._replace(deadline=timeout))
        self.summary()
        result = Result(initial_arrays)
        run(
            msgspec.structs.replace(self.config, rounds=num_rounds),
            self.folder,
            resume=True,
            make_built=lambda config, _lanes, _tuner: self._build(config, grid, result),
            on_round=_say_done,
            say=LOG.info,
        )
        return result

    def _build(self, config: Config, grid: Grid, result: Result) -> Built:
        """Builds what a simulation is built from, with the federation as its engine."""

        def sum_over_clients(sent: Broadcast, t: int) -> Total:
            return play_until_done(self.policy, t, functools.partial(self.attempt, grid, sent))

        federation = Engine(lambda t: t, sum_over_clients, compile=as_it_is)
        judge = reports = None
        if config.evaluation_by == "clients":
            judge = federated_judge(config, self.model, self.data, self._asking(grid, EVALUATION))
            if config.weights_follow == "heldout":
                ask = self._asking(grid, REPORT)
                reports = federated_reports(config, self.data, ask, self.privacy)
        built = assemble(
            config,
            self.model,
            self.data,
            lambda *_: federation,
            judge=judge,
            reports=reports,
            privacy=self.privacy,
        )
        algorithm = built.algorithm

        def init() -> ServerState:
            state = algorithm.init()
            return state._replace(params=tree.from_named(to_arrays(result.arrays), state.params))

        def round(state: ServerState, t: int) -> tuple[ServerState, RoundInfo]:
            state, info = algorithm.round(state, t)
            result.arrays = to_record(tree.named(state.params))
            return state, info

        return built._replace(algorithm=algorithm._replace(init=init, round=round))

    def _asking(self, grid: Grid, kind: str) -> Ask:
        """How the federation is asked for sums of another kind than those of training."""

        def ask(number: int, params: Params, way: Way) -> Total:
            other = self.for_kind(kind, number, way)
            sent = Broadcast(params, jnp.zeros(self.data.train.num_domains))

            play = functools.partial(other.attempt, grid, sent)
            return play_until_done(self.policy, number, play, kind)

        return ask

    def for_kind(self, kind: str, number: int, way: Way) -> Self:
        """The same strategy for a sum of another kind, whose messages go another way."""
        del kind, number
        other = copy.copy(self)
        other.channel, other.message, other.total = way.channel, way.message, way.message
        return other

    def sums_asked(self) -> int:
        """For how many secure sums clients were asked for their vectors: in the clear, none."""
        return 0

    def attempt(self, grid: Grid, sent: Broadcast, attempt: Attempt) -> Any:
        """Σ_k over the clients that report in time, or `Abandoned`."""
        arrays = to_record(tree.named(sent))

        def ask(answered: Collection[int], last: Collection[int]) -> Gathered:
            needed = still_needed(self.policy, len(answered))
            nodes = select(grid, needed, self.config.seed, attempt, answered, last)
            return gather(
                grid,
                self._work(nodes, arrays, stamp(attempt, **terms_record(self.terms))),
                attempt,
                seconds=self.policy.deadline,
                stage="work",
                enough=needed.clients,
                refusal=functools.partial(self.refusal, sent),
            )

        looking = Looking(self.policy, attempt)
        gathered = gather_willing(looking, ask, lambda: list(grid.get_node_ids()))
        LOG.info("%s: %d reports", attempt.called, len(gathered.replies))
        total, _ = self.aggregate_train(attempt.round, gathered.replies)
        sums = wire.unpack(to_arrays(total), self.total)
        why = self.implausible(sent, sums, len(gathered.replies))
        if why is not None:
            raise Abandoned(f"the sum cannot be right: {why}")
        if isinstance(sums, ClientSum):
            return sums._replace(left_out=sums.left_out + gathered.refused)
        return sums

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Asks the clients of the attempt that `config` names for their work at `arrays`."""
        del server_round
        nodes = select(grid, self.policy, self.config.seed, attempt_of(config))
        return self._work(nodes, arrays, config)

    def _work(
        self, nodes: Iterable[int], arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        content = RecordDict({ARRAYS: arrays, ROUND: config})
        return [request(node, MessageType.TRAIN, content, self.policy.deadline) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The sum of what clients sent (not yet a model: that is `agnostic_round`'s to make)."""
        del server_round
        summands = [
            self.channel.summand(wire.unpack(to_arrays(_sum(reply.content)), self.message))
            for reply in replies
        ]
        number = len(summands)
        if number < self.policy.minimum:
            raise Abandoned(f"{number} reports came, and {self.policy.minimum} are needed")
        total = jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *summands)
        return to_record(wire.pack(total)), MetricRecord({"reports": number})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Flower's own way to evaluate is not used: clients give tallies, as a kind of sum."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        del server_round, replies

    def summary(self) -> None:
        LOG.info("Agnostic Federated Averaging, %s", self.policy)

    def refusal(self, sent: Broadcast, content: RecordDict) -> str | None:
        """Why a reply to what was sent cannot be a contribution; None if it can."""
        try:
            vectors = to_arrays(_sum(content))
        except Exception as error:  # what a stranger sends can fail to be read in any way
            return f"its vector cannot be read ({type(error).__name__})"
        wrong = wire.refusal(vectors, self.message)
        if wrong is not None:
            return wrong
        own = self.channel.summand(wire.unpack(vectors, self.message))
        return self.implausible(sent, own, 1)

    def implausible(
        self, sent: Broadcast, total: Total, clients: int, holders: Sequence[int] | None = None
    ) -> str | None:
        """Why a total cannot be what so many honest clients add up to; None if it can."""
        adders = Adders(sent.alpha, clients, holders)
        return why_implausible(self.channel, sent.channel_state, total, adders)


def _say_done(record: Record) -> None:
    """A line of the log with the round's record in it."""
    losses = [loss for loss in record["loss"] if loss is not None]
    seconds = record["seconds"]  # None in a private run
    fields = {"event": "round", "round": record["round"], "seconds": seconds, "record": record}
    fields |= {"took": "" if seconds is None else f" in {seconds:.1f} s"}
    fields |= {"worst": max(losses, default=float("nan"))}
    LOG.info("round %(round)d is done%(took)s; the worst loss is %(worst).4g", fields)


def _sum(content: RecordDict) -> ArrayRecord:
    return content.array_records[SUM]
