# SPDX-License-Identifier: Apache-2.0
"""A client's vector under differential privacy, with its share of the noise, before it is masked.

The noise is drawn from the operating system's own entropy, anew for every vector that leaves: the
seed of the run has no part in it, and nothing is used twice.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.channel import Channel
from agnosticfl.deploy import wire
from agnosticfl.privacy.accounting import ROUNDED
from agnosticfl.privacy.discrete import discrete_gaussian
from agnosticfl.privacy.entropy import Bits, from_system
from agnosticfl.secagg.messages import Refused

if TYPE_CHECKING:
    from agnosticfl.channels.dp.noise import Scale  # its module needs JAX

LOG = logging.getLogger("flwr")


def with_noise(message: Any, scale: "Scale", bits: Bits = from_system) -> dict[str, np.ndarray]:
    """Whole numbers, packed, with this client's share of the noise, modulo 2^32."""
    vector = within_length(message, scale)["int32"]
    total = vector.astype(np.int64) + discrete_gaussian(scale.sigma, vector.size, bits)
    return {"int32": (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)}


def within_length(message: Any, scale: "Scale") -> dict[str, np.ndarray]:
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


def check_state(channel: Channel, given: Mapping[str, np.ndarray]) -> Any:
    """The channel's state as the task has it; `Refused` if the server says another."""
    own = channel.init()
    named = tree.named(own)
    same = given.keys() == named.keys() and all(
        np.array_equal(given[name], value) for name, value in named.items()
    )
    if not same:
        raise Refused("the server says other bounds or other noise than the task")
    return own
