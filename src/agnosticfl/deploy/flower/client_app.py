# SPDX-License-Identifier: Apache-2.0
"""The client's side of a federation: a Flower ClientApp around procedure CLIENT of Algorithm 1."""

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.deploy.flower import audited
from agnosticfl.deploy.flower.node_data import (
    NodeData,
    files_of,
    name_of,
    node_data,
    without_store,
)
from agnosticfl.deploy.flower.records import (
    ARRAYS,
    DECLINED,
    OVER,
    ROUND,
    SECURE,
    SUM,
    to_arrays,
    to_record,
)
from agnosticfl.deploy.node import consent, eligibility
from agnosticfl.deploy.node.contribute import Call, Contribute, answer, jax_client
from agnosticfl.deploy.node.file_cache import FileCache
from agnosticfl.deploy.served import differences
from agnosticfl.deploy.task import FILE, KINDS, TRAINING, FederatedTask, read_task, terms
from agnosticfl.errors import BadInput
from agnosticfl.runs.config import most_clients
from agnosticfl.secagg.messages import Refused

if TYPE_CHECKING:
    from agnosticfl.core.model import Model  # its module takes a second to load
    from agnosticfl.secagg.member import Member  # its module needs the extra `secure`

LOG = logging.getLogger("flwr")


def client_app(
    folder: Path | str,
    contribute: Contribute | None = None,
    policy: eligibility.Policy | None = None,
    model: "Model | None" = None,
) -> ClientApp:
    """The ClientApp of the federation whose `task.json` is in `folder`.

    Task, examples, roster and keys are read once, and again when their files have changed.

    Args:
      contribute: how the client answers; by default by `jax_client()`, and `torch_client(…)` gives
        one for PyTorch.
      policy: whether the client joins a round; by default as its node was started
        (`agnosticfl deploy client --when …`).
      model: what the client evaluates, if it is not one that the task can name (`torch_model(…)`
        gives one for PyTorch). Without it, a client with a `contribute` of its own has no metrics
        in its audit log's lines of training.
    """
    app = ClientApp()
    client = _Client(Path(folder), contribute, policy, model)
    handlers = {"join": client.join, "secure": client.step, "over": client.over}
    app.train()(client.noting(client.train))
    for name, handler in handlers.items():
        app.query(name)(client.noting(handler))
    return app


class _Client:
    """What answers each kind of message, for every node that its process is started for."""

    def __init__(
        self,
        place: Path,
        contribute: Contribute | None,
        policy: eligibility.Policy | None,
        model: "Model | None",
    ):
        self._place, self._policy, self._model = place, policy, model
        self._compute = contribute or jax_client()
        self._can_measure = model is not None or contribute is None  # what it trains
        self._tasks, self._data = FileCache[FederatedTask](), FileCache[NodeData]()
        self._members = FileCache[Any]()
        self._noted: dict[str, Any] = {}  # of the message that is being answered, for the audit log

    # One for each kind of message.

    def train(self, message: Message, context: Context) -> RecordDict:
        """A contribution in the clear, or a secure round's next step."""
        if SECURE in message.content:
            return self.step(message, context)
        if "roster" in context.node_config:
            raise Refused("this node takes part in secure rounds only")
        task = self._task()
        if task.config.dp is not None:
            raise Refused("a private run has secure rounds only")
        said: Any = message.content.config_records[ROUND]
        if other := differences(terms(task), said):
            raise Refused("; ".join(other))
        return self._declined(message, context) or RecordDict(
            {SUM: to_record(self._vector(message, context, self._own(context)))}
        )

    def join(self, message: Message, context: Context) -> RecordDict:
        """Whether it takes part in a secure round."""
        follow_roster(context)
        return self._declined(message, context) or self.step(message, context)

    def step(self, message: Message, context: Context) -> RecordDict:
        """A step of a secure round."""
        from agnosticfl.deploy.flower.secure_answers import can_decline, own_member, secure_answer

        if can_decline(message):
            leaves = self._declined(message, context, joining=False)
            if leaves is not None:
                return leaves
        task, kind = self._task(), sum_kind(message)
        own = self._members.get(
            (kind, *name_of(context)),
            [self._place / FILE, *files_of(context, "roster", "signing-key")],
            lambda: own_member(task, context.node_config, kind=kind),
        )
        return secure_answer(
            own,
            Path(str(context.node_config["memory"])),
            message,
            functools.partial(self._secure_vector, message, context, own),
            functools.partial(self._declines, message, context, later=1),
        )

    def over(self, message: Message, context: Context) -> RecordDict:
        """The run has ended."""
        del context
        said = message.content.config_records[OVER]
        self._noted.update({"rounds": said.get("rounds")})
        run = self._task().run
        LOG.info("the run %s has ended, says the server: %s rounds", run, said["rounds"])
        return RecordDict()

    def noting(self, handler: "Handler") -> Callable[[Message, Context], Message]:
        """A handler whose work is in the audit log."""

        def fresh(message: Message, context: Context) -> RecordDict:
            self._noted.clear()
            return handler(message, context)

        return discreet(fresh, self._write_down)

    # What they are made of.

    def _task(self) -> FederatedTask:
        return self._tasks.get(FILE, [self._place / FILE], lambda: read_task(self._place))

    def _own(self, context: Context) -> NodeData:
        task, files = self._task(), files_of(context, "data")
        return self._data.get(
            name_of(context), [self._place / FILE, *files], lambda: node_data(task, context)
        )

    def _declines(
        self, message: Message, context: Context, joining: bool, later: int = 0
    ) -> str | None:
        """Why it takes no part; its conditions (`policy`) are those for joining only."""
        allowed = audited.allowance_of(self._task(), context.node_config)
        reason = allowed.unwilling(round_name(message, later), round_number(message, later))
        reason = reason or without_store(context)
        if reason is None and joining:
            policy = self._policy or node_policy(context)
            reason = policy(self._own(context).data.num_examples)
        if reason is not None:
            LOG.info("not joining: %s" if joining else "leaving the round: %s", reason)
        return reason

    def _declined(
        self, message: Message, context: Context, joining: bool = True
    ) -> RecordDict | None:
        reason = self._declines(message, context, joining)
        self._noted.update({} if reason is None else {"why": reason})
        return None if reason is None else RecordDict({DECLINED: ConfigRecord()})

    def _vector(self, message: Message, context: Context, own: NodeData) -> dict[str, np.ndarray]:
        """What it contributes: procedure CLIENT, or its tallies of a model that is evaluated."""
        task, t = self._task(), round_number(message)
        audited.allowance_of(task, context.node_config).take(round_name(message), t)
        arrays = to_arrays(message.content.array_records[ARRAYS])
        params = below(arrays, "params.")
        if (kind := sum_kind(message)) != TRAINING:
            from agnosticfl.deploy.node.evaluate import judge_model

            vectors, measured = judge_model(task.config, kind, t, self._model, own, params)
            self._noted.update(measured)
            return vectors
        call = Call(
            config=task.config,
            data=own.data,
            client=own.number,
            seed=own.seed,
            round=t,
            params=params,
            alpha=arrays["alpha"],
        )
        sums = self._compute(call)
        self._noted.update(audited.own_figures(own.data.num_examples, sums))
        if self._can_measure and context.node_config.get("audit"):
            from agnosticfl.deploy.node.evaluate import trained_metrics

            measured = trained_metrics(task.config, self._model, own.data, call.params)
            self._noted["metrics"] = measured
        return answer(call, sums, below(arrays, "channel_state."))

    def _secure_vector(
        self, message: Message, context: Context, own: "Member", cohort: int
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """The same for a secure sum over `cohort` clients, and the domains that have weight in it.

        Refused if it has no room for so many, or if others were told less of this node's domains.
        """
        from agnosticfl.deploy.node.examples import held_domains

        task, data = self._task(), self._own(context)
        room = most_clients(task.config)
        if cohort > room:
            raise Refused(f"a sum of {cohort} clients; its numbers have room for {room}")
        for part in (data.data, *data.kept.values()):
            consent.check_stated(held_domains(part), own.agreement.holdings[own.place])
        if sum_kind(message) != TRAINING:  # of each domain by itself: none has more weight
            return self._vector(message, context, data), task.domains
        alpha = to_arrays(message.content.array_records[ARRAYS])["alpha"]
        if own.agreement.honest:  # their noise covers each client, whatever has weight
            return self._vector(message, context, data), consent.any_weight(alpha, task.domains)
        least = float((task.config.secure or {}).get("least_alpha", 0))
        weighty = consent.weighty(alpha, task.domains, least)
        return self._vector(message, context, data), weighty

    def _write_down(
        self,
        message: Message,
        context: Context,
        event: str,
        content: RecordDict | None,
        why: str,
    ) -> None:
        more = {**self._noted, **({"why": why} if why else {})}
        line = audited.entry(message, context, self._task(), event, content, more)
        (audited.write_failure if content is None else audited.write)(context, line)


Handler = Callable[[Message, Context], RecordDict]
# (message, context, event, what is answered, why nothing is) -> written down.
WriteDown = Callable[[Message, Context, str, RecordDict | None, str], None]


def discreet(handler: Handler, write_down: WriteDown) -> Callable[[Message, Context], Message]:
    """A handler whose failures stay on the client: an exception may quote its data.

    What it answers is written down before that leaves.
    """

    def handle(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        try:
            content = handler(message, context)
            content[ROUND] = same_attempt(message.content.config_records[ROUND])
            write_down(message, context, audited.event_of(message, content), content, "")
            return Message(content, reply_to=message)
        except Refused as error:  # of the server's own making: it may hear of it
            LOG.warning("%s: refused: %s", kind, error)
            reason, event, why = f"refused: {error}", "refused", str(error)
        except BadInput as error:  # says in one line what to do
            LOG.error("%s: this client cannot answer: %s", kind, error)
            reason, event, why = "its own log says why", "failed", "the client's log says why"
        except Exception:
            LOG.exception("%s: this client cannot answer", kind)
            reason, event, why = "its own log says why", "failed", "the client's log says why"
        with contextlib.suppress(Exception):  # what failed may be what writes
            write_down(message, context, event, None, why)
        return Message(Error(code=0, reason=reason), reply_to=message)

    return handle


def round_name(message: Message, later: int = 0) -> str:
    """By what a client counts the rounds that it takes part in, this one or one of the next.

    Of a round of secure sums it opens one, however often that is tried; in the clear each answer
    counts, since the server can read each. Sums of other kinds have numbers of their own.
    """
    kind, t = sum_kind(message), round_number(message, later)
    name = str(t) if kind == TRAINING else f"{kind} {round_number(message)}"
    token = message.content.config_records[ROUND]["token"]
    return name if SECURE in message.content else f"{name} {token}"


def round_number(message: Message, later: int = 0) -> int:
    """t, of this round or one of the next."""
    t: Any = message.content.config_records[ROUND]["round"]
    return t + later


def follow_roster(context: Context) -> None:
    """Accepts the roster that the node's operator has put there since, and says what changed."""
    from agnosticfl.deploy.accepted import accept

    node = context.node_config
    if "roster-file" in node:
        for line in accept(Path(str(node["roster-file"])), Path(str(node["roster"]))):
            LOG.info(line)


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose names begin so, without that beginning."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def same_attempt(asked: ConfigRecord) -> ConfigRecord:
    """What a reply says of the attempt it belongs to."""
    return ConfigRecord({"token": asked["token"]})


def sum_kind(message: Message) -> str:
    """Which kind of sum a message is about."""
    kind: Any = message.content.config_records[ROUND].get("kind", TRAINING)
    if kind not in KINDS:
        raise Refused("a kind of sum that this client does not know")
    return kind


def node_policy(context: Context) -> eligibility.Policy:
    """The policy that the node was started with."""
    names = str(context.node_config.get("when", ""))
    number = context.node_config.get("min-examples", 1)
    return eligibility.conditions([name for name in names.split(",") if name], int(number))
