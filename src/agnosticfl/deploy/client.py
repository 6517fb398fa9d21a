# SPDX-License-Identifier: Apache-2.0
"""The client's side of a federation: a Flower ClientApp around procedure CLIENT of Algorithm 1."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from agnosticfl.config import Config
from agnosticfl.data.federated import FederatedData
from agnosticfl.deploy import eligibility
from agnosticfl.deploy.records import ARRAYS, DECLINED, ROUND, SECURE, SUM, to_arrays, to_record
from agnosticfl.deploy.task import FederatedTask, read_task
from agnosticfl.errors import check
from agnosticfl.secure.messages import Refused

if TYPE_CHECKING:
    from agnosticfl.channel import ClientSum  # its module takes a second to load

LOG = logging.getLogger("flwr")


class Call(NamedTuple):
    """What the server asks of a client in one round, and what the client has to answer with."""

    config: Config
    data: FederatedData  # with this client's examples alone
    client: int  # its number in `data`
    seed: int  # of the order of its examples and its other random choices
    round: int  # t
    params: dict[str, np.ndarray]  # w_{t-1}, by name
    alpha: np.ndarray  # [p] α_t


# How a client answers: L^k, N^k, β^k and β^k Δ^k, the last with the names of the parameters.
Contribute: TypeAlias = Callable[[Call], "ClientSum"]


def jax_client(call: Call) -> "ClientSum":
    """The client of this library: the engines' work, for a cohort of one."""
    import jax
    import jax.numpy as jnp

    from agnosticfl import engine as engines
    from agnosticfl.build import build_client_optimizer, build_named
    from agnosticfl.client import ClientWork, check_work
    from agnosticfl.deploy import wire
    from agnosticfl.engine import Broadcast
    from agnosticfl.models import MODELS
    from agnosticfl.precision import in_precision

    config = call.config
    model = build_named(config.model, MODELS, "model")
    work = ClientWork(
        model,
        build_client_optimizer(config.client_optimizer),
        call.data.num_domains,
        config.batch_size,
        config.epochs,
        config.normalisation,
        local_steps=config.local_steps,
    )
    engine = engines.auto(check_work(work), call.data, lambda _: np.array([call.client]), call.seed)
    params = wire.from_named(call.params, jax.eval_shape(model.init, jax.random.key(0)))
    total = in_precision(engine.compile(engine.sum_over_clients), config.precision)
    return total(Broadcast(params, jnp.asarray(call.alpha)), engine.cohort(call.round))


def answer(call: Call, sums: "ClientSum", state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A contribution as it goes through the channel of the run, whose state is `state`."""
    import jax

    from agnosticfl.build import build_channel
    from agnosticfl.channel import ENCODE
    from agnosticfl.deploy import wire
    from agnosticfl.engine.seam import client_key

    channel = build_channel(call.config, None)(jax.eval_shape(lambda: sums))
    key = jax.random.fold_in(client_key(call.seed, call.round, call.client), ENCODE)
    return wire.pack(channel.encode(wire.from_named(state, channel.init()), sums, key))


def client_app(
    folder: Path | str,
    contribute: Contribute = jax_client,
    policy: eligibility.Policy | None = None,
) -> ClientApp:
    """The ClientApp of the federation whose `task.json` is in `folder`.

    Args:
      contribute: how the client answers; `torch_client(…)` gives one for PyTorch.
      policy: whether the client joins a round; by default as its node was started
        (`agnosticfl deploy client --when …`).
    """
    app = ClientApp()

    def declined(context: Context, examples: int) -> RecordDict | None:
        reason = (policy or node_policy(context))(examples)
        if reason is None:
            return None
        LOG.info("not joining: %s", reason)
        return RecordDict({DECLINED: ConfigRecord()})

    def vector(message: Message, context: Context, task: FederatedTask) -> dict[str, np.ndarray]:
        data, number, seed = own_data(task, context)
        t: Any = message.content.config_records[ROUND]["round"]
        arrays = to_arrays(message.content.array_records[ARRAYS])
        call = Call(
            config=task.config,
            data=data,
            client=number,
            seed=seed,
            round=t,
            params=below(arrays, "params."),
            alpha=arrays["alpha"],
        )
        return answer(call, contribute(call), below(arrays, "channel."))

    def train(message: Message, context: Context) -> RecordDict:
        task = read_task(Path(folder))
        if SECURE in message.content:
            return step(message, context, lambda: vector(message, context, task))
        if "roster" in context.node_config:
            raise Refused("this node takes part in secure rounds only")
        return declined(context, own_data(task, context)[0].num_examples) or RecordDict(
            {SUM: to_record(vector(message, context, task))}
        )

    def join(message: Message, context: Context) -> RecordDict:
        from agnosticfl.deploy.secure_client import introduction, own_member

        del message
        task = read_task(Path(folder))
        own = own_member(task.config, context.node_config)
        return declined(context, own_data(task, context)[0].num_examples) or introduction(own)

    def step(
        message: Message, context: Context, work: Callable[[], dict[str, np.ndarray]] | None = None
    ) -> RecordDict:
        from agnosticfl.deploy.secure_client import own_member, secure_answer

        own = own_member(read_task(Path(folder)).config, context.node_config)
        return secure_answer(own, Path(str(context.node_config["memory"])), message, work)

    app.train()(discreet(train))
    app.query("join")(discreet(join))
    app.query("secure")(discreet(step))
    return app


def discreet(
    handler: Callable[[Message, Context], RecordDict],
) -> Callable[[Message, Context], Message]:
    """A handler whose failures stay on the client: an exception may quote its data."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = handler(message, context)
            content[ROUND] = same_attempt(message.content.config_records[ROUND])
            return Message(content, reply_to=message)
        except Refused as error:  # of the server's own making: it may hear of it
            LOG.warning("%s: refused: %s", message.metadata.message_type, error)
            return Message(Error(code=0, reason=f"refused: {error}"), reply_to=message)
        except Exception:
            LOG.exception("%s: this client cannot answer", message.metadata.message_type)
            return Message(Error(code=0, reason="its own log says why"), reply_to=message)

    return handle


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose names begin so, without that beginning."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def same_attempt(asked: ConfigRecord) -> ConfigRecord:
    """What a reply says of the attempt it belongs to."""
    return ConfigRecord({"token": asked["token"]})


def node_policy(context: Context) -> eligibility.Policy:
    """The policy that the node was started with."""
    names = str(context.node_config.get("when", ""))
    number = context.node_config.get("min-examples", 1)
    return eligibility.conditions([name for name in names.split(",") if name], int(number))


def own_data(task: FederatedTask, context: Context) -> tuple[FederatedData, int, int]:
    """The examples of this node, its number among the clients, and its seed.

    A node has a store of its own (`data`), all of whose training examples are its own; or, to try a
    federation on one machine, its share of the task's data (`partition-id` of `num-partitions`).
    """
    from agnosticfl.data import SOURCES
    from agnosticfl.data.store import open_store
    from agnosticfl.deploy.data import dealt_to, one_client, with_domains
    from agnosticfl.sampling import random_bits

    node, seed = context.node_config, task.config.seed
    if "data" in node:
        store = open_store(str(node["data"]))
        check("train" in store.splits, f"the store {store.path} has no split 'train'")
        own = with_domains(store.splits["train"], task.domains)
        return one_client(own), 0, int(random_bits(seed, context.node_id)) % 2**31
    number = int(node["partition-id"])
    options = dict(task.config.data)
    train = SOURCES[options.pop("name")](**options).train
    return dealt_to(train, number, int(node["num-partitions"])), number, seed
