# SPDX-License-Identifier: Apache-2.0
"""The client's side of a federation: a Flower ClientApp around procedure CLIENT of Algorithm 1."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.deploy.flower import audited
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
from agnosticfl.deploy.schema import check_schema, schema_of
from agnosticfl.deploy.served import differences
from agnosticfl.deploy.task import (
    FILE,
    KINDS,
    TRAINING,
    FederatedTask,
    check_program,
    read_task,
    terms,
)
from agnosticfl.errors import BadInput, check
from agnosticfl.registry import SOURCES
from agnosticfl.runs.about import facts_of, facts_of_store
from agnosticfl.runs.config import most_clients
from agnosticfl.secagg.messages import Refused

if TYPE_CHECKING:
    from agnosticfl.core.model import Model  # its module takes a second to load

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
    app, place, compute = ClientApp(), Path(folder), contribute or jax_client()
    tasks, holdings, places = FileCache[FederatedTask](), FileCache[NodeData](), FileCache[Any]()
    noted: dict[str, Any] = {}  # of the message that is being answered, for the audit log

    def agreed() -> FederatedTask:
        return tasks.get(FILE, [place / FILE], lambda: read_task(place))

    def own_data(context: Context) -> NodeData:
        task, files = agreed(), _files(context, "data")
        return holdings.get(
            _name(context), [place / FILE, *files], lambda: node_data(task, context)
        )

    def declines(message: Message, context: Context, joining: bool, later: int = 0) -> str | None:
        """Why it takes no part; its conditions (`policy`) are those for joining only."""
        allowed = audited.allowance_of(agreed(), context.node_config)
        reason = allowed.unwilling(round_name(message, later), round_number(message, later))
        reason = reason or without_store(context)
        if reason is None and joining:
            reason = (policy or node_policy(context))(own_data(context).data.num_examples)
        if reason is not None:
            LOG.info("not joining: %s" if joining else "leaving the round: %s", reason)
        return reason

    def declined(message: Message, context: Context, joining: bool = True) -> RecordDict | None:
        reason = declines(message, context, joining)
        noted.update({} if reason is None else {"why": reason})
        return None if reason is None else RecordDict({DECLINED: ConfigRecord()})

    def vector(message: Message, context: Context, own: NodeData) -> dict[str, np.ndarray]:
        task = agreed()
        t = round_number(message)
        audited.allowance_of(task, context.node_config).take(round_name(message), t)
        arrays = to_arrays(message.content.array_records[ARRAYS])
        if (kind := sum_kind(message)) != TRAINING:
            from agnosticfl.deploy.node.evaluate import judge_model

            params = below(arrays, "params.")
            vectors, measured = judge_model(task.config, kind, t, model, own, params)
            noted.update(measured)
            return vectors
        call = Call(
            config=task.config,
            data=own.data,
            client=own.number,
            seed=own.seed,
            round=t,
            params=below(arrays, "params."),
            alpha=arrays["alpha"],
        )
        sums = compute(call)
        noted.update(audited.own_figures(own.data.num_examples, sums))
        known = model is not None or contribute is None  # what is trained
        if known and context.node_config.get("audit"):
            from agnosticfl.deploy.node.evaluate import trained_metrics

            noted["metrics"] = trained_metrics(task.config, model, own.data, call.params)
        return answer(call, sums, below(arrays, "channel_state."))

    def train(message: Message, context: Context) -> RecordDict:
        if SECURE in message.content:
            return step(message, context)
        if "roster" in context.node_config:
            raise Refused("this node takes part in secure rounds only")
        if agreed().config.dp is not None:
            raise Refused("a private run has secure rounds only")
        said: Any = message.content.config_records[ROUND]
        if other := differences(terms(agreed()), said):
            raise Refused("; ".join(other))
        return declined(message, context) or RecordDict(
            {SUM: to_record(vector(message, context, own_data(context)))}
        )

    def join(message: Message, context: Context) -> RecordDict:
        follow_roster(context)
        return declined(message, context) or step(message, context)

    def over(message: Message, context: Context) -> RecordDict:
        del context
        said = message.content.config_records[OVER]
        noted.update({"rounds": said.get("rounds")})
        LOG.info("the run %s has ended, says the server: %s rounds", agreed().run, said["rounds"])
        return RecordDict()

    def write_down(message: Message, context: Context, event: str, content: Any, why: str) -> None:
        more = {**noted, **({"why": why} if why else {})}
        line = audited.entry(message, context, agreed(), event, content, more)
        (audited.write_failure if content is None else audited.write)(context, line)

    def step(message: Message, context: Context) -> RecordDict:
        from agnosticfl.deploy.flower.secure_answers import can_decline, own_member, secure_answer
        from agnosticfl.deploy.node.examples import held_domains

        if can_decline(message):
            leaves = declined(message, context, joining=False)
            if leaves is not None:
                return leaves
        task, files = agreed(), _files(context, "roster", "signing-key")
        kind = sum_kind(message)
        own = places.get(
            (kind, *_name(context)),
            [place / FILE, *files],
            lambda: own_member(task, context.node_config, kind=kind),
        )

        def work(cohort: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
            room = most_clients(task.config)
            if cohort > room:
                raise Refused(f"a sum of {cohort} clients; its numbers have room for {room}")
            data = own_data(context)
            for part in (data.data, *data.kept.values()):
                consent.check_stated(held_domains(part), own.agreement.holdings[own.place])
            if kind != TRAINING:  # sums of each domain by itself: none has more weight than others
                return vector(message, context, data), task.domains
            alpha = to_arrays(message.content.array_records[ARRAYS])["alpha"]
            if own.agreement.honest:  # their noise covers each client, whatever has weight
                return vector(message, context, data), consent.any_weight(alpha, task.domains)
            least = float((task.config.secure or {}).get("least_alpha", 0))
            weighty = consent.weighty(alpha, task.domains, least)
            return vector(message, context, data), weighty

        def declines_next(joining: bool) -> str | None:
            return declines(message, context, joining, 1)

        memory = Path(str(context.node_config["memory"]))
        return secure_answer(own, memory, message, work, declines_next)

    def entered(handler: Handler) -> Callable[[Message, Context], Message]:
        """A handler whose work is in the audit log."""

        def fresh(message: Message, context: Context) -> RecordDict:
            noted.clear()
            return handler(message, context)

        return discreet(fresh, write_down)

    app.train()(entered(train))
    app.query("join")(entered(join))
    app.query("secure")(entered(step))
    app.query("over")(entered(over))
    return app


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


def _name(context: Context) -> tuple[Any, ...]:
    """What tells a node from others that the same app works for."""
    return context.node_id, *sorted(context.node_config.items())


def _files(context: Context, *names: str) -> list[Path]:
    """The files that a node was started with, of those names."""
    return [Path(str(context.node_config[n])) for n in names if n in context.node_config]


def without_store(context: Context) -> str | None:
    """That the node's store was taken away; None if it is there."""
    gone = [str(path) for path in _files(context, "data") if not path.exists()]
    return f"its store is not there: {gone[0]}" if gone else None


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


class NodeData(NamedTuple):
    """What a node works on."""

    data: FederatedData  # with its own examples alone, those that it trains on
    number: int  # of this node among the clients
    seed: int
    kept: Mapping[str, FederatedData] = {}  # what it keeps from training, by split
    figures: Path | None = None  # where its operator finds what it measured


def node_data(task: FederatedTask, context: Context) -> NodeData:
    """The examples of this node, its number among the clients, and its seed.

    A node has a store of its own (`data`), all of whose training examples are its own; or, to try a
    federation on one machine, its share of the task's data (`partition-id` of `num-partitions`).
    It is compared with what is agreed on whenever it is opened: a store may change while the node
    runs.
    """
    from agnosticfl.core.random import random_bits
    from agnosticfl.data.store import open_store
    from agnosticfl.deploy.node.examples import dealt_to, one_client, with_domains

    check_program(task, FILE)
    node, seed = context.node_config, task.config.seed
    if "data" in node:
        store = open_store(str(node["data"]))
        check("train" in store.splits, f"the store {store.path} has no split 'train'")
        check_schema(task.schema, schema_of(facts_of_store(store)), f"the store {store.path}")
        splits = {name: with_domains(part, task.domains) for name, part in store.splits.items()}
        parts = {name: one_client(part) for name, part in splits.items()}
        number, seed = 0, int(random_bits(seed, context.node_id)) % 2**31
    else:
        number, nodes = int(node["partition-id"]), int(node["num-partitions"])
        data: Splits = SOURCES.build(task.config.data, "data")
        check_schema(task.schema, schema_of(facts_of(data)), "the task's own data")
        parts = {"train": dealt_to(data.train, number, nodes)}
        if task.config.evaluation_by == "clients" and task.config.evaluation_share == 0:
            given = {"heldout": data.heldout, "test": data.test}
            held = {name: part for name, part in given.items() if part is not None}
            parts |= {name: dealt_to(part, number, nodes) for name, part in held.items()}
    if task.config.evaluation_by == "server":
        return NodeData(parts["train"], number, seed)
    from agnosticfl.runs.judging import own_parts  # here: who only trains may have no JAX

    kept = own_parts(task.config, parts)
    figures = Path(str(node["figures"])) if "figures" in node else None
    train = kept.pop("train")
    return NodeData(train, number, seed, kept, figures)
