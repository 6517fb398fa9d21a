# SPDX-License-Identifier: Apache-2.0
"""How a node answers a request for its work: from (w, α) to its part of the sum."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.core.federated import FederatedData
from agnosticfl.deploy.node import noised
from agnosticfl.errors import require
from agnosticfl.runs.config import Config, most_clients

if TYPE_CHECKING:
    from agnosticfl.core.contribution import ClientSum  # its module takes a second to load


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


def jax_client() -> Contribute:
    """The client of this library: the engines' work, for a cohort of one.

    What was compiled is kept, as long as the same is asked of the same examples.
    """
    require("jax", "a client whose client_app.py has no torch_client", "deploy")  # now, not later
    kept: dict[tuple[int, int], tuple[FederatedData, Config, Contribute]] = {}

    def contribute(call: Call) -> "ClientSum":
        name = (call.client, call.seed)
        before = kept.get(name)
        if before is None or before[0] is not call.data or before[1] != call.config:
            kept[name] = before = (call.data, call.config, _program(call))
        return before[2](call)

    return contribute


def _program(call: Call) -> Contribute:
    """What answers calls with the configuration and the examples of `call`."""
    import jax
    import jax.numpy as jnp

    from agnosticfl.core import tree
    from agnosticfl.core.contribution import Broadcast
    from agnosticfl.core.precision import in_precision
    from agnosticfl.core.work import ClientWork, check_work
    from agnosticfl.engines.auto import auto_engine
    from agnosticfl.registry import MODELS
    from agnosticfl.runs.optimizers import build_optimizer

    config = call.config
    model = MODELS.build(config.model, "model")
    work = ClientWork(
        model,
        build_optimizer(config.client_optimizer, "client_optimizer"),
        call.data.num_domains,
        config.batch_size,
        config.epochs,
        config.normalisation,
        local_steps=config.local_steps,
    )
    number = np.array([call.client])
    engine = auto_engine(check_work(work), call.data, lambda _: number, call.seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    total = in_precision(engine.compile(engine.sum_over_clients), config.precision)

    def contribute(call: Call) -> "ClientSum":
        params = tree.from_named(call.params, shapes)
        return total(Broadcast(params, jnp.asarray(call.alpha)), engine.cohort(call.round))

    return contribute


def answer(call: Call, sums: "ClientSum", state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A contribution as it goes through the channel of the run, whose state is `state`.

    One that was made in NumPy goes there without JAX, and becomes the same numbers; under
    differential privacy that holds for all.
    """
    update, in_numpy = sums.weighted_delta, isinstance(sums.beta, np.ndarray)
    if in_numpy and isinstance(update, dict) and update.keys() == call.params.keys():
        # By names, in the order in which the server has them: "layers.2" before "layers.10".
        sums = sums._replace(weighted_delta=[update[name] for name in call.params])
    if call.config.dp is not None:
        return noised.private_answer(call.config, sums, state)
    if in_numpy:
        place = Place(call.seed, call.round, call.client)
        return answer_in_numpy(call.config, place, sums, state, call.config.compress)
    import jax

    from agnosticfl.core import tree
    from agnosticfl.core.channel import ENCODE
    from agnosticfl.core.random import client_key
    from agnosticfl.deploy import wire
    from agnosticfl.runs.build_channel import build_channel

    channel = build_channel(call.config, None)(jax.eval_shape(lambda: sums))
    key = jax.random.fold_in(client_key(call.seed, call.round, call.client), ENCODE)
    return wire.pack(channel.encode(tree.from_named(state, channel.init()), sums, key))


class Place(NamedTuple):
    """What the random bits of a client's message follow from."""

    seed: int
    number: int  # of the round, or of the question
    client: int


def answer_in_numpy(
    config: Config,
    place: Place,
    sums: "ClientSum",
    state: Mapping[str, np.ndarray],
    compress: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The answer of a client that needs no JAX."""
    from agnosticfl.channels import in_numpy
    from agnosticfl.core import threefry
    from agnosticfl.core.channel import ENCODE
    from agnosticfl.deploy import wire
    from agnosticfl.runs.judging import bounds_of

    key = threefry.key(place.seed)
    for number in (place.number, place.client, ENCODE):
        key = threefry.fold_in(key, number)
    secure = None if config.secure is None else (most_clients(config), bounds_of(config))
    return wire.pack(in_numpy.sent(sums, state, key, secure=secure, compress=compress))
