# SPDX-License-Identifier: Apache-2.0
"""A client's vector under differential privacy, with its share of the noise, before it is masked.

The noise is drawn from the operating system's own entropy, anew for every vector that leaves: the
seed of the run has no part in it, and nothing is used twice.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from agnosticfl.channels.dp.in_numpy import named_state, whole_numbers
from agnosticfl.channels.dp.noise import Scale
from agnosticfl.channels.in_numpy import Sums, usable
from agnosticfl.core import tree
from agnosticfl.core.contribution import ClientSum
from agnosticfl.deploy import wire
from agnosticfl.deploy.private import privacy_of
from agnosticfl.privacy.accounting import ROUNDED
from agnosticfl.privacy.discrete import discrete_gaussian
from agnosticfl.privacy.entropy import Bits, from_system
from agnosticfl.runs.config import Config
from agnosticfl.secagg.messages import Refused

LOG = logging.getLogger("flwr")


def private_answer(
    config: Config, sums: ClientSum, state: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """A contribution clipped and noised as the client's own task says, packed.

    Only where a server is trusted with the sum is it the server that adds the noise.

    Args:
      state: of the channel, as the server says it; None where it says none.
    """
    update, *others = sums
    own = Sums([*map(np.asarray, tree.leaves(update))], *map(np.asarray, others))
    privacy = privacy_of(config, own)
    if state is not None:
        check_state(named_state(privacy.clip, privacy.scale), state)
    made = with_noise if privacy.mode == "distributed" else within_length
    return made(whole_numbers(privacy.clip, privacy.scale, usable(own)), privacy.scale)


def with_noise(message: Any, scale: Scale, bits: Bits = from_system) -> dict[str, np.ndarray]:
    """Whole numbers, packed, with this client's share of the noise, modulo 2^32."""
    vector = within_length(message, scale)["int32"]
    total = vector.astype(np.int64) + discrete_gaussian(scale.sigma, vector.size, bits)
    return {"int32": (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)}


def within_length(message: Any, scale: Scale) -> dict[str, np.ndarray]:
    """Whole numbers, packed, to which somebody else adds the noise.

    What the accounting rests on is looked at here once more, whatever made the numbers: a vector
    that is longer than it may be is left out, as one with a number that is not finite is.
    """
    (kind, vector), *others = wire.pack(message).items()
    assert kind == "int32"
    assert not others
    if np.linalg.norm(vector.astype(np.float64)) > scale.units * (1 + ROUNDED):
        LOG.warning("this client's vector is too long, and is left out: it adds nothing of its own")
        vector = np.zeros_like(vector)
    return {kind: vector}


def check_state(own: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    """Refuses a channel's state that is not the task's."""
    same = given.keys() == own.keys() and all(
        np.array_equal(given[name], value) for name, value in own.items()
    )
    if not same:
        raise Refused("the server says other bounds or other noise than the task")
